// Poll, work, commit. Usage: java Consumer GROUP CONSUMER, with DATABASE_URL. Needs the PostgreSQL JDBC driver.

import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

public class Consumer {
    static final int BATCH_EVENTS = 100;
    static final Set<String> RETRY = Set.of("40001", "40P01");

    /** A row of poll_outbox, which has more columns. */
    record Event(long lease, long seq, String eventId, String aggregateId, String payload, int deliveries) {}

    final String group;
    final String consumer; // two running processes never have the same name
    final int visibilitySeconds; // more than a batch takes
    final CountDownLatch stop = new CountDownLatch(1);
    private volatile int exitCode = 1;

    Consumer(String group, String consumer, int visibilitySeconds) {
        this.group = group;
        this.consumer = consumer;
        this.visibilitySeconds = visibilitySeconds;
    }

    /** The effect of one event. It is committed together with the offset, or not at all. */
    void work(Connection connection, Event event) throws Exception {
        String sql = "INSERT INTO effect (event_id, seq, aggregate_id, consumer) VALUES (?, ?, ?, ?)";
        try (PreparedStatement insert = connection.prepareStatement(sql)) {
            insert.setString(1, event.eventId());
            insert.setLong(2, event.seq());
            insert.setString(3, event.aggregateId());
            insert.setString(4, consumer);
            insert.executeUpdate();
        }
    }

    List<Event> poll(Connection connection) throws SQLException {
        List<Event> batch = new ArrayList<>();
        String sql = "SELECT * FROM postrider.poll_outbox(?, ?, ?, ?)";
        try (PreparedStatement poll = connection.prepareStatement(sql)) {
            poll.setString(1, group);
            poll.setString(2, consumer);
            poll.setInt(3, BATCH_EVENTS);
            poll.setInt(4, visibilitySeconds);
            try (ResultSet row = poll.executeQuery()) {
                while (row.next()) {
                    batch.add(new Event(row.getLong("lease"), row.getLong("seq"), row.getString("event_id"),
                            row.getString("aggregate_id"), row.getString("payload"), row.getInt("deliveries")));
                }
            }
        }
        return batch;
    }

    void commitOffset(Connection connection, Event last) throws SQLException {
        try (PreparedStatement commit = connection.prepareStatement("SELECT postrider.commit_offset(?, ?, ?, ?)")) {
            commit.setString(1, group);
            commit.setString(2, consumer);
            commit.setLong(3, last.seq());
            commit.setLong(4, last.lease());
            commit.execute();
        }
    }

    /** Works on a batch and commits its offset, in one transaction. */
    void handle(Connection connection, List<Event> batch) throws SQLException {
        while (!stopping()) {
            try {
                connection.setAutoCommit(false);
                for (Event event : batch) {
                    if (stopping()) {
                        connection.rollback();
                        return;
                    }
                    work(connection, event);
                }
                commitOffset(connection, batch.get(batch.size() - 1));
                connection.commit();
                return;
            } catch (Exception error) {
                String code = codeOf(error);
                System.err.println("batch rolled back: " + code + " " + error);
                connection.rollback(); // fails if the connection is lost
                // PR114, PR115: another consumer has the batch, or has done it. Any other error: the batch is
                // delivered again when its lease has run out; the other partitions go on meanwhile.
                if (!RETRY.contains(code)) {
                    return;
                }
            } finally {
                if (!connection.isClosed()) {
                    connection.setAutoCommit(true);
                }
            }
        }
    }

    /** The SQLSTATE, if there is one: also for errors of the driver. */
    static String codeOf(Exception error) {
        return error instanceof SQLException refused && refused.getSQLState() != null ? refused.getSQLState() : "";
    }

    boolean stopping() {
        return stop.getCount() == 0;
    }

    /** Waits between min and max milliseconds, or until the process is to stop. */
    void await(long min, long max) throws InterruptedException {
        stop.await(ThreadLocalRandom.current().nextLong(min, max), TimeUnit.MILLISECONDS);
    }

    /** What this name has leased can be polled again at once. */
    void release(Connection connection) throws SQLException {
        try (PreparedStatement release = connection.prepareStatement("SELECT postrider.release_lease(?, ?)")) {
            release.setString(1, group);
            release.setString(2, consumer);
            release.execute();
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
        properties.setProperty("connectTimeout", "10"); // seconds
        properties.setProperty("logServerErrorDetail", "false"); // a detail can quote a row
        // No prepared statements, which would not outlive a transaction behind a transaction pooler.
        properties.setProperty("prepareThreshold", "0");
        int port = url.getPort() == -1 ? 5432 : url.getPort();
        String parameters = url.getRawQuery() == null ? "" : "?" + url.getRawQuery();
        String jdbc = "jdbc:postgresql://" + url.getHost() + ":" + port + url.getRawPath() + parameters;
        return DriverManager.getConnection(jdbc, properties);
    }

    /** One connection, until it is lost or the process is to stop. */
    void run(Connection connection) throws SQLException, InterruptedException {
        release(connection); // of a process of this name that was killed, or has lost its connection
        while (!stopping()) {
            List<Event> batch = List.of();
            try {
                batch = poll(connection);
            } catch (SQLException error) {
                if (!RETRY.contains(codeOf(error))) {
                    throw error;
                }
            }
            if (batch.isEmpty()) {
                await(200, 1000);
            } else {
                handle(connection, batch);
            }
        }
        release(connection);
    }

    void loop() throws SQLException, InterruptedException {
        Thread main = Thread.currentThread();
        // SIGTERM: the hook waits until the loop has ended. Without halt the exit code would be 143.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop.countDown();
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(exitCode);
        }));
        while (!stopping()) {
            try (Connection connection = connect()) {
                run(connection);
            } catch (SQLException error) {
                String code = codeOf(error);
                // The server refuses what is asked, and will refuse it again: no such group, no rights.
                if (!code.isEmpty() && !Set.of("08", "40", "53", "57").contains(code.substring(0, 2))) {
                    throw error;
                }
                System.err.println("connecting again: " + code + " " + error);
                await(500, 3000);
            }
        }
        exitCode = 0;
    }

    public static void main(String[] arguments) throws SQLException, InterruptedException {
        new Consumer(arguments[0], arguments[1], 30).loop();
    }
}
