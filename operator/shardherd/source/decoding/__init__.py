"""From the bytes of record batches to Arrow columns, in all of Kafka's formats and codecs. No input or output."""
