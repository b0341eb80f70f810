// Work that takes longer than a lease: a timer extends the lease. Saved beside Consumer.java, and used in the same way.

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

public class LongWork extends Consumer {
    private volatile long lostLease = -1;

    LongWork(String group, String consumer, int visibilitySeconds) {
        super(group, consumer, visibilitySeconds);
    }

    /** Long work looks from time to time whether there is still a reason for it. */
    @Override
    void work(Connection connection, Event event) throws Exception {
        for (int part = 0; part < 5; part++) {
            if (lostLease == event.lease() || stopping()) {
                throw new CancellationException("the lease is lost, or the process is to stop");
            }
            Thread.sleep(100); // a part of the work
        }
        super.work(connection, event);
    }

    /** The batch is worked on by this thread, and its lease is extended by another, over a connection of its own. */
    @Override
    void handle(Connection connection, List<Event> batch) throws SQLException {
        long pause = Math.max(1, visibilitySeconds * 1000L / 3);
        ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        timer.scheduleAtFixedRate(() -> extend(batch.get(0).lease()), pause, pause, TimeUnit.MILLISECONDS);
        try {
            super.handle(connection, batch);
        } finally {
            timer.shutdown(); // an extension after the commit is refused with PR114, and changes nothing
        }
    }

    private void extend(long lease) {
        String sql = "SELECT postrider.extend_lease(?, ?, ?, ?)";
        try (Connection connection = connect(); PreparedStatement extend = connection.prepareStatement(sql)) {
            extend.setString(1, group);
            extend.setString(2, consumer);
            extend.setInt(3, visibilitySeconds);
            extend.setLong(4, lease);
            extend.execute();
        } catch (SQLException error) {
            // Any other error: the next tick tries it again.
            if (codeOf(error).equals("PR114")) {
                lostLease = lease;
            }
        }
    }

    public static void main(String[] arguments) throws SQLException, InterruptedException {
        new LongWork(arguments[0], arguments[1], Integer.getInteger("visibility", 30)).loop();
    }
}
