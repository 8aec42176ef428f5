import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Kafka's side of bench-assignor: its own assignors on a group of a given size.
 *
 * <p>Arguments: shards, consumers, topics. Each line of the standard input names an event (uniform-full, uniform-leave,
 * cooperative-leave); each is answered by one line: nanoseconds, shards that changed hands, smallest and largest load.
 */
public final class Peer {
    private record Change(String member, String topic, Set<Integer> partitions) {}

    private record Answer(long nanoseconds, int moved, int least, int most) {}

    private final int consumers;
    private final int partitionsEach;
    private final List<String> topics = new ArrayList<>();
    private final Map<String, Uuid> ids = new HashMap<>();
    private final Map<Uuid, String> names = new HashMap<>();
    private final SubscribedTopicDescriber describer;
    private final String leaver;
    private GroupSpec empty;
    private GroupSpec afterLeaving;
    private Map<String, List<PartitionInfo>> partitionsByTopic;
    private Map<String, Subscription> subscriptions;

    private Peer(int shards, int consumers, int topicCount) {
        this.consumers = consumers;
        this.partitionsEach = shards / topicCount;
        Map<Uuid, Integer> sizes = new HashMap<>();
        for (int at = 0; at < topicCount; at++) {
            String name = String.format("topic-%04d", at);
            Uuid id = new Uuid(7, at + 1);
            topics.add(name);
            ids.put(name, id);
            names.put(id, name);
            sizes.put(id, partitionsEach);
        }
        this.describer = new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                return sizes.get(topic);
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int partition) {
                return Set.of();
            }
        };
        this.leaver = member(consumers / 2);
        this.empty = spec(Map.of(), null);
    }

    private static String member(int number) {
        return "consumer-" + number;
    }

    /** The group at rest with these assignments, as the coordinator keeps it. */
    private GroupSpec spec(Map<String, MemberAssignment> held, String without) {
        Set<Uuid> subscribed = Collections.unmodifiableSet(new HashSet<>(names.keySet()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (int number = 0; number < consumers; number++) {
            String name = member(number);
            if (name.equals(without)) {
                continue;
            }
            Assignment assignment =
                held.containsKey(name) ? new Assignment(held.get(name).partitions()) : Assignment.EMPTY;
            assignment.partitions().forEach((topic, partitions) -> {
                Map<Integer, String> owner = owners.computeIfAbsent(topic, any -> new HashMap<>());
                partitions.forEach(partition -> owner.put(partition, name));
            });
            members.put(name, new MemberSubscriptionAndAssignmentImpl(Optional.empty(), Optional.empty(), subscribed, assignment));
        }
        return new GroupSpecImpl(members, SubscriptionType.HOMOGENEOUS, owners);
    }

    private Answer uniform(GroupSpec group) {
        UniformAssignor assignor = new UniformAssignor();
        long begun = System.nanoTime();
        Map<String, MemberAssignment> target = assignor.assign(group, describer).members();
        List<Change> delta = new ArrayList<>();
        for (Map.Entry<String, MemberAssignment> each : target.entrySet()) {
            Map<Uuid, Set<Integer>> before = group.memberAssignment(each.getKey()).partitions();
            Map<Uuid, Set<Integer>> after = each.getValue().partitions();
            if (after.equals(before)) {
                continue;
            }
            for (Map.Entry<Uuid, Set<Integer>> topic : after.entrySet()) {
                Set<Integer> had = before.get(topic.getKey());
                if (had == null) {
                    delta.add(new Change(each.getKey(), names.get(topic.getKey()), topic.getValue()));
                } else if (!topic.getValue().equals(had)) {
                    Set<Integer> gained = new HashSet<>(topic.getValue());
                    gained.removeAll(had);
                    delta.add(new Change(each.getKey(), names.get(topic.getKey()), gained));
                }
            }
        }
        long taken = System.nanoTime() - begun;
        List<Integer> loads = new ArrayList<>();
        target.values().forEach(each -> loads.add(each.partitions().values().stream().mapToInt(Set::size).sum()));
        return answer(taken, delta, loads);
    }

    private Answer cooperative() {
        CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
        long begun = System.nanoTime();
        Map<String, List<TopicPartition>> target = assignor.assignPartitions(partitionsByTopic, subscriptions);
        List<Change> delta = new ArrayList<>();
        for (Map.Entry<String, List<TopicPartition>> each : target.entrySet()) {
            List<TopicPartition> before = subscriptions.get(each.getKey()).ownedPartitions();
            List<TopicPartition> after = each.getValue();
            if (after.equals(before)) {
                continue;
            }
            List<TopicPartition> gained;
            if (after.size() > before.size() && after.subList(0, before.size()).equals(before)) {
                gained = after.subList(before.size(), after.size());
            } else {
                Set<TopicPartition> had = new HashSet<>(before);
                gained = new ArrayList<>(after);
                gained.removeIf(had::contains);
            }
            Map<String, Set<Integer>> byTopic = new HashMap<>();
            gained.forEach(one -> byTopic.computeIfAbsent(one.topic(), any -> new HashSet<>()).add(one.partition()));
            byTopic.forEach((topic, partitions) -> delta.add(new Change(each.getKey(), topic, partitions)));
        }
        long taken = System.nanoTime() - begun;
        List<Integer> loads = new ArrayList<>();
        target.values().forEach(each -> loads.add(each.size()));
        return answer(taken, delta, loads);
    }

    private static Answer answer(long taken, List<Change> delta, List<Integer> loads) {
        int moved = delta.stream().mapToInt(change -> change.partitions().size()).sum();
        return new Answer(taken, moved, Collections.min(loads), Collections.max(loads));
    }

    /** The state after everything was given out and one consumer has left. */
    private void rest() {
        Map<String, MemberAssignment> held = new UniformAssignor().assign(empty, describer).members();
        afterLeaving = spec(held, leaver);
    }

    private void subscribe() {
        Node[] replicas = new Node[0];
        Map<String, List<PartitionInfo>> infos = new HashMap<>();
        for (String topic : topics) {
            List<PartitionInfo> partitions = new ArrayList<>();
            for (int at = 0; at < partitionsEach; at++) {
                partitions.add(new PartitionInfo(topic, at, null, replicas, replicas));
            }
            infos.put(topic, partitions);
        }
        Map<String, Subscription> fresh = new HashMap<>();
        for (int number = 0; number < consumers; number++) {
            fresh.put(member(number), new Subscription(topics, null, List.of(), -1, Optional.empty()));
        }
        Map<String, List<TopicPartition>> held = new CooperativeStickyAssignor().assignPartitions(infos, fresh);
        Map<String, Subscription> owning = new HashMap<>();
        held.forEach((name, owned) -> {
            if (!name.equals(leaver)) {
                owning.put(name, new Subscription(topics, null, owned, 1, Optional.empty()));
            }
        });
        partitionsByTopic = infos;
        subscriptions = owning;
    }

    public static void main(String[] arguments) throws Exception {
        Peer peer = new Peer(Integer.parseInt(arguments[0]), Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]));
        peer.rest();
        peer.subscribe();
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String event = input.readLine(); event != null; event = input.readLine()) {
            Answer answer = switch (event) {
                case "uniform-full" -> peer.uniform(peer.empty);
                case "uniform-leave" -> peer.uniform(peer.afterLeaving);
                case "cooperative-leave" -> peer.cooperative();
                default -> throw new IllegalArgumentException("unknown event " + event);
            };
            System.out.println(answer.nanoseconds() + " " + answer.moved() + " " + answer.least() + " " + answer.most());
        }
    }
}
