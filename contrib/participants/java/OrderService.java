// java -cp 'jars/*' OrderService.java PORT, with JDBC_URL=jdbc:postgresql://…
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.sql.*;
import java.time.Instant;
import java.time.format.DateTimeParseException;
import java.util.*;
import java.util.concurrent.Executors;
import java.util.stream.Stream;

public class OrderService {
    static final ObjectMapper json = new ObjectMapper();
    interface Effect { String apply(Connection db, JsonNode c) throws SQLException; }
    static final Map<String, Effect> effects = Map.of("CancelOrder", OrderService::cancel, "ReopenOrder", OrderService::reopen);
    record Reply(int status, Object body) {}

    static PreparedStatement prepare(Connection db, String sql, Object... values) throws SQLException {
        var statement = db.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
        return statement;
    }

    static String cancel(Connection db, JsonNode c) throws SQLException {
        String tenant = c.at("/order/tenant").asText(), order = c.at("/order/order_id").asText();
        int generation = c.at("/order/generation").asInt();
        try (var update = prepare(db, """
                update orders set status = 'cancelled', cancelled_by = ?
                where tenant = ? and order_id = ? and generation = ? and status = 'awaiting_payment'
                  and (not ? or due_at <= clock_timestamp())""",
                c.path("command_id").asText(), tenant, order, generation, Set.of("timeout", "sweep").contains(c.path("cause").asText()))) {
            if (update.executeUpdate() == 1) return "{\"outcome\": \"done\", \"output\": {\"already\": false}}";
        }
        try (var select = prepare(db, "select generation, status, to_json(due_at) from orders where tenant = ? and order_id = ?", tenant, order);
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
        try (var update = prepare(db, """
                update orders set status = 'awaiting_payment', cancelled_by = null, needs_attention = true
                where tenant = ? and order_id = ? and generation = ? and status = 'cancelled' and cancelled_by = ?""",
                c.at("/order/tenant").asText(), c.at("/order/order_id").asText(), c.at("/order/generation").asInt(),
                c.path("action_id").asText())) {
            return "{\"outcome\": \"done\", \"output\": {\"undone\": " + (update.executeUpdate() == 1) + "}}";
        }
    }

    // One transaction for one command.
    static JsonNode answer(Connection db, JsonNode c) throws SQLException, IOException {
        try (var enter = prepare(db, "select lapse_enter(?::jsonb)", c.toString()); var row = enter.executeQuery()) {
            row.next();
            var found = row.getString(1) == null ? null : json.readTree(row.getString(1));
            if (found == null) {
                found = json.readTree(effects.get(c.path("operation").asText()).apply(db, c));
                ((ObjectNode) found).set("command_id", c.get("command_id"));
                try (var leave = prepare(db, "select lapse_leave(?::jsonb)", found.toString())) { leave.execute(); }
            }
            db.commit();
            return found;
        }
    }

    static int statusOf(SQLException error) { // 4xx: nothing was applied; 503: who knows
        String state = error.getSQLState() == null ? "" : error.getSQLState();
        return switch (state) {
            case "40001", "40P01" -> 409;
            case "55P03" -> 423;
            default -> state.startsWith("22") || state.startsWith("23") ? 400 : 503;
        };
    }

    static boolean readable(JsonNode c) {
        try {
            return Instant.parse(c.path("expires_at").asText()) != null && c.at("/order/generation").isInt()
                && Stream.of("/command_id", "/operation", "/order/tenant", "/order/order_id").allMatch(field -> c.at(field).isTextual());
        } catch (DateTimeParseException error) {
            return false;
        }
    }

    static Reply commands(String path, byte[] text) throws IOException, SQLException {
        if (text.length > 4 << 20) return new Reply(413, Map.of("detail", "more than 4 MiB"));
        JsonNode body = json.readTree(text);
        var batch = new ArrayList<JsonNode>();
        if (body.isArray()) body.forEach(batch::add); else batch.add(body);
        if (!batch.stream().allMatch(OrderService::readable)) return new Reply(400, Map.of("detail", "not commands"));
        if (!path.equals("/v1/commands") || !batch.stream().allMatch(c -> effects.containsKey(c.path("operation").asText())))
            return new Reply(404, Map.of("detail", "POST /v1/commands for CancelOrder and ReopenOrder is all there is"));
        var answers = new ArrayList<Object>();
        try (var db = DriverManager.getConnection(System.getenv("JDBC_URL"))) { // yours come from a pool
            db.setAutoCommit(false);
            for (var c : batch) {
                try {
                    answers.add(answer(db, c));
                } catch (SQLException error) {
                    db.rollback(); // where that fails too, the whole request is answered 503
                    int status = statusOf(error);
                    if (!body.isArray()) return new Reply(status, Map.of("detail", error.getMessage()));
                    if (status == 503) System.err.println(c.get("command_id") + ": " + error); // what may have been applied is left out
                    else answers.add(Map.of("command_id", c.get("command_id"), "outcome", "failed", "error", "refused: " + error.getMessage()));
                }
            }
        }
        return new Reply(200, body.isArray() ? answers : answers.get(0));
    }

    public static void main(String[] arguments) throws IOException {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/", exchange -> {
            Reply reply;
            try {
                reply = commands(exchange.getRequestURI().getPath(), exchange.getRequestBody().readNBytes((4 << 20) + 1));
            } catch (Exception error) {
                int status = error instanceof com.fasterxml.jackson.core.JsonProcessingException ? 400 : 503;
                reply = new Reply(status, Map.of("detail", String.valueOf(error.getMessage())));
            }
            byte[] text = json.writeValueAsBytes(reply.body());
            exchange.getResponseHeaders().set("content-type", "application/json");
            exchange.sendResponseHeaders(reply.status(), text.length);
            exchange.getResponseBody().write(text);
            exchange.close();
        });
        server.start();
    }
}
