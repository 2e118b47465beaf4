// java -cp 'jars/*' OrderEvent.java BROKERS TOPIC ORDER_ID PAY_DEADLINE
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Instant;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class OrderEvent {
    public static void main(String[] arguments) throws Exception {
        String brokers = arguments[0], topic = arguments[1], orderId = arguments[2];
        var payDeadline = Instant.parse(arguments[3]); // Instant.now().plus(Duration.ofMinutes(15))
        Map<String, Object> settings = Map.of("bootstrap.servers", brokers, "acks", "all", "enable.idempotence", true);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            var event = new TreeMap<>(Map.of("order_id", orderId, "order_type", "normal", "pay_deadline", payDeadline.toString()));
            var value = new ObjectMapper().writeValueAsString(event);
            producer.send(new ProducerRecord<>(topic, orderId, value)).get(); // throws if it was not accepted
        }
    }
}
