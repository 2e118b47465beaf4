// javac -cp 'jars/*' -d classes *.java; java -cp 'classes:jars/*' OrderService PORT, with JDBC_URL=jdbc:postgresql://…
import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.Map;
import java.util.Set;

public class OrderService {
    static String cancel(Connection db, JsonNode c) throws SQLException {
        String tenant = c.at("/order/tenant").asText(), order = c.at("/order/order_id").asText();
        int generation = c.at("/order/generation").asInt();
        try (var update = LapseParticipant.prepare(db, """
                update orders set status = 'cancelled', cancelled_by = ?
                where tenant = ? and order_id = ? and generation = ? and status = 'awaiting_payment'
                  and (not ? or due_at <= clock_timestamp())""",
                c.path("command_id").asText(), tenant, order, generation,
                Set.of("timeout", "sweep").contains(c.path("cause").asText()))) {
            if (update.executeUpdate() == 1) return "{\"outcome\": \"done\", \"output\": {\"already\": false}}";
        }
        try (var select = LapseParticipant.prepare(db, """
                select generation, status, to_json(due_at) from orders where tenant = ? and order_id = ?""", tenant, order);
                var row = select.executeQuery()) {
            if (!row.next()) return "{\"outcome\": \"failed\", \"error\": \"unknown_order\"}";
            if (row.getInt(1) != generation) return "{\"outcome\": \"not_applicable\", \"reason\": \"generation\"}";
            return switch (row.getString(2)) {
                case "paid" -> "{\"outcome\": \"not_applicable\", \"reason\": \"paid\"}";
                case "cancelled" -> "{\"outcome\": \"done\", \"output\": {\"already\": true}}";
                default -> "{\"outcome\": \"not_due\", \"until\": " + row.getString(3) + "}";
            };
        }
    }

    // Only what the very command that is undone has cancelled, and it is left to a human.
    static String reopen(Connection db, JsonNode c) throws SQLException {
        try (var update = LapseParticipant.prepare(db, """
                update orders set status = 'awaiting_payment', cancelled_by = null, needs_attention = true
                where tenant = ? and order_id = ? and generation = ? and status = 'cancelled' and cancelled_by = ?""",
                c.at("/order/tenant").asText(), c.at("/order/order_id").asText(), c.at("/order/generation").asInt(),
                c.path("action_id").asText())) {
            return "{\"outcome\": \"done\", \"output\": {\"undone\": " + (update.executeUpdate() == 1) + "}}";
        }
    }

    public static void main(String[] arguments) throws IOException {
        new LapseParticipant(Map.of("CancelOrder", OrderService::cancel, "ReopenOrder", OrderService::reopen))
            .serve(Integer.parseInt(arguments[0]));
    }
}
