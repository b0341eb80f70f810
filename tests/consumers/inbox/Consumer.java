// The inbox in a consumer and in workers. Needs the PostgreSQL JDBC driver, and DATABASE_URL.
//
// java Consumer is-new|advance|once CONSUMER < records    each effect once, behind Kafka
// java Consumer store INBOX < records                     store first ...
// java Consumer work INBOX WORKER                         ... and work in one transaction
// java Consumer ordered INBOX WORKER SECONDS              ... or with a lease

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Types;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

public class Consumer {
    static final String SOURCE = "orders"; // the name of the pipeline, if the records do not have it as a header
    static final int BATCH_MESSAGES = 10;
    static final Set<String> RETRY = Set.of("40001", "40P01");

    record Record(String offset, String topic, String key, Map<String, String> headers, String value) {
        /**
         * Stands for a client of Kafka: a record is a line of the standard input, its fields separated by tabs. Headers
         * are NAME=VALUE, separated by commas.
         */
        static Record of(String line) {
            String[] fields = line.split("\t", 5);
            Map<String, String> headers = new HashMap<>();
            for (String header : fields[3].split(",")) {
                String[] parts = header.split("=", 2);
                if (parts.length == 2) {
                    headers.put(parts[0], parts[1]);
                }
            }
            return new Record(fields[0], fields[1], fields[2], headers, fields[4]);
        }

        String aggregate() {
            return topic + "/" + key;
        }

        String source() {
            return headers.getOrDefault("source", SOURCE);
        }
    }

    record Message(String eventId, String aggregate, String payload, Long claim) {}

    /** Something that is done in a transaction. */
    interface Work<T> {
        T run() throws SQLException;
    }

    /** Whether the effect of a record is to happen. */
    interface Rule {
        boolean isNew(Record record) throws SQLException;
    }

    final Connection connection;
    final String name; // of the consumer, or of the inbox

    Consumer(Connection connection, String name) {
        this.connection = connection;
        this.name = name;
    }

    /** Stands for the commit of the offset in Kafka. */
    static void commitOffset(Record record) {
        System.out.println(record.offset());
    }

    <T> T inTransaction(Work<T> work) throws SQLException {
        while (true) {
            try {
                connection.setAutoCommit(false);
                T result = work.run();
                connection.commit();
                return result;
            } catch (SQLException error) {
                connection.rollback(); // fails if the connection is lost
                if (!RETRY.contains(codeOf(error))) {
                    throw error;
                }
            } finally {
                if (!connection.isClosed()) {
                    connection.setAutoCommit(true);
                }
            }
        }
    }

    static String codeOf(SQLException error) {
        return error.getSQLState() == null ? "" : error.getSQLState();
    }

    /** Whatever is to happen once, in this database. */
    void effect(String eventId, String aggregate, String payload, String doneBy) throws SQLException {
        String sql = "INSERT INTO effect (event_id, aggregate_id, payload, done_by) VALUES (?, ?, ?::jsonb, ?)";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            insert.setString(1, eventId);
            insert.setString(2, aggregate);
            insert.setString(3, payload);
            insert.setString(4, doneBy);
            insert.executeUpdate();
        }
    }

    boolean ask(String sql, String... arguments) throws SQLException {
        try (PreparedStatement select = connection.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++) {
                select.setString(i + 1, arguments[i]); // null is NULL
            }
            try (ResultSet row = select.executeQuery()) {
                row.next();
                return row.getBoolean(1);
            }
        }
    }

    /** For all events of Postrider. */
    boolean isNew(Record record) throws SQLException {
        Map<String, String> headers = record.headers();
        return ask("SELECT postrider.inbox_is_new(?, ?, ?, ?, ?, ?)", name, record.source(), record.aggregate(),
                headers.get("id"), headers.get("position"), headers.get("history"));
    }

    void handle(Record record, Rule rule) throws SQLException {
        inTransaction(() -> {
            if (rule.isNew(record)) {
                effect(record.headers().get("id"), record.aggregate(), record.value(), name);
            }
            return null;
        });
        commitOffset(record);
    }

    /** For events that always have a position. */
    boolean advance(Record record) throws SQLException {
        return ask("SELECT postrider.inbox_advance(?, ?, ?, ?)", name, record.source(), record.aggregate(),
                record.headers().get("position"));
    }

    /** For messages of other producers, with their own time if they have one. */
    boolean once(Record record) throws SQLException {
        Map<String, String> headers = record.headers();
        return ask("SELECT postrider.inbox_once(?, ?, ?, ?::timestamptz)", name,
                headers.getOrDefault("source", record.topic()), headers.get("id"), headers.get("time"));
    }

    /** Stores a record, and nothing else. A repetition has the same event_id. */
    void store(Record record) throws SQLException {
        Map<String, String> headers = record.headers();
        String position = headers.get("position");
        String history = position == null ? headers.get("history") : position.substring(0, 8);
        String sql = "INSERT INTO postrider_inbox." + name
                + " (event_id, event_type, source, aggregate_id, payload, sequence_num)"
                + " VALUES (?, ?, ?, ?, ?::jsonb, ?::bigint) ON CONFLICT (event_id) DO NOTHING";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            insert.setString(1, record.source() + "/" + history + "/" + headers.get("id"));
            insert.setString(2, headers.get("type"));
            insert.setString(3, record.source());
            insert.setString(4, record.aggregate());
            insert.setString(5, record.value());
            insert.setString(6, headers.get("sequence"));
            insert.executeUpdate();
        }
        commitOffset(record);
    }

    List<Message> next(String worker, String lease) throws SQLException {
        List<Message> batch = new ArrayList<>();
        String sql = "SELECT * FROM postrider.inbox_next(?, ?, ?, ?::interval)";
        try (PreparedStatement select = connection.prepareStatement(sql)) {
            select.setString(1, name);
            select.setString(2, worker);
            select.setInt(3, BATCH_MESSAGES);
            select.setString(4, lease);
            try (ResultSet row = select.executeQuery()) {
                while (row.next()) {
                    batch.add(new Message(row.getString("event_id"), row.getString("aggregate_id"),
                            row.getString("payload"), row.getObject("claim", Long.class)));
                }
            }
        }
        return batch;
    }

    void done(Message message) throws SQLException {
        try (PreparedStatement call = connection.prepareStatement("SELECT postrider.inbox_done(?, ?, ?)")) {
            call.setString(1, name);
            call.setArray(2, connection.createArrayOf("text", new String[] {message.eventId()}));
            call.setObject(3, message.claim(), Types.BIGINT);
            call.execute();
        }
    }

    void fail(Message message, Exception error) throws SQLException {
        String code = error instanceof SQLException refused ? codeOf(refused) : "";
        String reason = String.valueOf(error.getMessage()).lines().findFirst().orElse("");
        System.err.println("failed: " + message.eventId() + " " + code + " " + reason);
        try (PreparedStatement call = connection.prepareStatement("SELECT postrider.inbox_fail(?, ?, ?, ?)")) {
            call.setString(1, name);
            call.setString(2, message.eventId());
            call.setString(3, reason);
            call.setObject(4, message.claim(), Types.BIGINT);
            call.execute();
        }
    }

    /** A batch in one transaction. Returns how many messages it had. */
    int work(String worker) throws SQLException {
        List<Message> batch = next(worker, null);
        for (Message message : batch) {
            Savepoint savepoint = connection.setSavepoint();
            try {
                effect(message.eventId(), message.aggregate(), message.payload(), worker);
                done(message);
            } catch (Exception error) {
                if (error instanceof SQLException refused && RETRY.contains(codeOf(refused))) {
                    throw refused;
                }
                connection.rollback(savepoint); // fails if the connection is lost
                fail(message, error);
            }
        }
        return batch.size();
    }

    /** A batch with a lease, and a transaction for each message. Returns how many messages it had. */
    int workWithLease(String worker, String seconds) throws SQLException {
        List<Message> batch = next(worker, seconds + " seconds");
        for (Message message : batch) {
            try {
                workOn(message, worker);
            } catch (SQLException error) {
                if (!codeOf(error).equals("PR114")) {
                    throw error;
                }
                // Another worker has the message since the lease ended. The effect is rolled back.
                System.err.println("lost: " + message.eventId() + " " + codeOf(error));
            }
        }
        return batch.size();
    }

    private void workOn(Message message, String worker) throws SQLException {
        try {
            inTransaction(() -> {
                effect(message.eventId(), message.aggregate(), message.payload(), worker);
                done(message);
                return null;
            });
        } catch (Exception error) {
            if (error instanceof SQLException refused && codeOf(refused).equals("PR114")) {
                throw refused;
            }
            fail(message, error); // fails if the connection is lost
        }
    }

    /** DATABASE_URL is postgresql://user:password@host:port/database?parameters, which JDBC wants in another form. */
    static Connection connect() throws SQLException {
        URI url = URI.create(System.getenv("DATABASE_URL"));
        Properties properties = new Properties();
        String[] login = url.getUserInfo() == null ? new String[0] : url.getUserInfo().split(":", 2);
        if (login.length > 0) {
            properties.setProperty("user", login[0]);
        }
        if (login.length > 1) {
            properties.setProperty("password", login[1]);
        }
        properties.setProperty("logServerErrorDetail", "false"); // a detail can quote a row
        // No prepared statements, which would not outlive a transaction behind a transaction pooler.
        properties.setProperty("prepareThreshold", "0");
        int port = url.getPort() == -1 ? 5432 : url.getPort();
        String parameters = url.getRawQuery() == null ? "" : "?" + url.getRawQuery();
        String jdbc = "jdbc:postgresql://" + url.getHost() + ":" + port + url.getRawPath() + parameters;
        return DriverManager.getConnection(jdbc, properties);
    }

    void run(String mode, String[] arguments) throws SQLException, IOException, InterruptedException {
        while (mode.equals("work") || mode.equals("ordered")) {
            String worker = arguments[2];
            boolean leased = mode.equals("ordered");
            if ((leased ? workWithLease(worker, arguments[3]) : inTransaction(() -> work(worker))) == 0) {
                Thread.sleep(ThreadLocalRandom.current().nextLong(200, 1000));
            }
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Record record = Record.of(line);
            switch (mode) {
                case "is-new" -> handle(record, this::isNew);
                case "advance" -> handle(record, this::advance);
                case "once" -> handle(record, this::once);
                case "store" -> store(record);
                default -> throw new IllegalArgumentException(mode);
            }
        }
    }

    public static void main(String[] arguments) throws SQLException, IOException, InterruptedException {
        try (Connection connection = connect()) {
            new Consumer(connection, arguments[1]).run(arguments[0], arguments);
        }
    }
}
