import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Properties;
import java.util.SplittableRandom;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes records with a key of 16 bytes and a value of seven fields to a topic: servers topic partitions records value-size codec form. */
public class Produce {
    private static final String[] PAGES = {"/", "/cart", "/search", "/product/1234", "/product/98765", "/checkout", "/help"};

    public static void main(String[] arguments) {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        long records = Long.parseLong(arguments[3]);
        int size = Integer.parseInt(arguments[4]);
        Properties settings = new Properties();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        settings.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, arguments[5]);
        settings.put(ProducerConfig.BATCH_SIZE_CONFIG, 64 * 1024);
        settings.put(ProducerConfig.LINGER_MS_CONFIG, 20);
        settings.put(ProducerConfig.BUFFER_MEMORY_CONFIG, 128L * 1024 * 1024);
        SplittableRandom random = new SplittableRandom(7);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (long number = 0; number < records; number++) {
                byte[] key = String.format("user-%011d", random.nextInt(1_000_000)).getBytes(StandardCharsets.US_ASCII);
                // Runs of one partition: batches fill up, as they do for a busy producer.
                byte[] value = arguments[6].equals("avro") ? avro(random, number, size) : json(random, number, size);
                producer.send(new ProducerRecord<>(topic, (int) (number / 400 % partitions), key, value));
            }
        }
    }

    /** Seven fields and a filler: about as compressible as events are. */
    private static byte[] json(SplittableRandom random, long number, int size) {
        StringBuilder text = new StringBuilder(size + 16);
        text.append("{\"id\":").append(number);
        text.append(",\"user\":\"u").append(random.nextInt(100_000)).append('"');
        text.append(",\"page\":\"").append(PAGES[random.nextInt(PAGES.length)]).append('"');
        text.append(",\"ms\":").append(random.nextInt(5_000));
        text.append(",\"price\":").append(random.nextInt(10_000) / 100.0);
        text.append(",\"new\":").append(random.nextBoolean());
        text.append(",\"note\":\"");
        while (text.length() < size - 2) {
            text.append(Long.toString(random.nextLong() >>> 1, 36)).append(" lorem ipsum dolor ");
        }
        text.setLength(size - 2);
        return text.append("\"}").toString().getBytes(StandardCharsets.US_ASCII);
    }

    /** The same fields in Avro: long, string, string, int, double, boolean, string. */
    private static byte[] avro(SplittableRandom random, long number, int size) {
        ByteBuffer out = ByteBuffer.allocate(size + 64).order(ByteOrder.LITTLE_ENDIAN);
        integer(out, number);
        text(out, "u" + random.nextInt(100_000));
        text(out, PAGES[random.nextInt(PAGES.length)]);
        integer(out, random.nextInt(5_000));
        out.putDouble(random.nextInt(10_000) / 100.0);
        out.put((byte) (random.nextBoolean() ? 1 : 0));
        StringBuilder note = new StringBuilder(size);
        int room = Math.max(0, size - out.position() - 2);
        while (note.length() < room) {
            note.append(Long.toString(random.nextLong() >>> 1, 36)).append(" lorem ipsum dolor ");
        }
        note.setLength(room);
        text(out, note.toString());
        return Arrays.copyOf(out.array(), out.position());
    }

    private static void text(ByteBuffer out, String text) {
        integer(out, text.length());
        out.put(text.getBytes(StandardCharsets.US_ASCII));
    }

    private static void integer(ByteBuffer out, long number) {
        long left = (number << 1) ^ (number >> 63);
        while ((left & ~0x7FL) != 0) {
            out.put((byte) (left & 0x7F | 0x80));
            left >>>= 7;
        }
        out.put((byte) left);
    }
}
