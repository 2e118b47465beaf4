// Serves effects as docs/participants.md says: the same for every participant.
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

/** Operations by name; each is called in the transaction of its command and gives its answer, as JSON without command_id. */
record LapseParticipant(Map<String, Effect> effects) {
    interface Effect { String apply(Connection db, JsonNode c) throws SQLException; }
    record Reply(int status, Object body) {}
    static final ObjectMapper json = new ObjectMapper();

    static PreparedStatement prepare(Connection db, String sql, Object... values) throws SQLException {
        var statement = db.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
        return statement;
    }

    // One transaction for one command.
    JsonNode answer(Connection db, JsonNode c) throws SQLException, IOException {
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
            var texts = Stream.of("/command_id", "/operation", "/order/tenant", "/order/order_id");
            return Instant.parse(c.path("expires_at").asText()) != null && c.at("/order/generation").isInt()
                && texts.allMatch(field -> c.at(field).isTextual());
        } catch (DateTimeParseException error) {
            return false;
        }
    }

    Reply commands(String path, byte[] text) throws IOException, SQLException {
        if (text.length > 4 << 20) return new Reply(413, Map.of("detail", "more than 4 MiB"));
        JsonNode body = json.readTree(text);
        var batch = new ArrayList<JsonNode>();
        if (body.isArray()) body.forEach(batch::add); else batch.add(body);
        if (!batch.stream().allMatch(LapseParticipant::readable)) return new Reply(400, Map.of("detail", "not commands"));
        if (!path.equals("/v1/commands") || !batch.stream().allMatch(c -> effects.containsKey(c.path("operation").asText())))
            return new Reply(404, Map.of("detail", "POST /v1/commands for " + effects.keySet() + " is all there is"));
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
                    // What may have been applied is left out.
                    if (status == 503) System.err.println(c.get("command_id") + ": " + error);
                    else answers.add(Map.of("command_id", c.get("command_id"), "outcome", "failed",
                        "error", "refused: " + error.getMessage()));
                }
            }
        }
        return new Reply(200, body.isArray() ? answers : answers.get(0));
    }

    void serve(int port) throws IOException {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
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
