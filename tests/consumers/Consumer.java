import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Reads records, one a line, and prints each whose effect is to happen. */
public class Consumer {
    // docs: begin
    /** What this consumer has seen. Keep both tables in the database of its effects. */
    static class Inbox {
        private final Map<String, String> highest = new HashMap<>(); // aggregate -> highest position
        private final Set<List<String>> ids = new HashSet<>(); // aggregate, history and id, of the last days

        /** Whether the effect of this record is to happen. Call it in the effect's transaction. */
        boolean isNew(String aggregate, Map<String, String> headers) {
            String position = headers.get("position");
            if (position != null) {
                if (position.compareTo(highest.getOrDefault(aggregate, "")) <= 0) {
                    return false;
                }
                highest.put(aggregate, position);
            }
            String history = position == null ? headers.get("history") : position.substring(0, 8);
            return ids.add(List.of(aggregate, history, headers.get("id")));
        }
    }
    // docs: end

    public static void main(String[] arguments) throws IOException {
        Inbox inbox = new Inbox();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            Map<String, String> headers = new HashMap<>();
            String[] names = {"id", "position", "history"};
            for (int i = 0; i < names.length; i++) {
                if (!parts[i + 1].isEmpty()) {
                    headers.put(names[i], parts[i + 1]);
                }
            }
            if (inbox.isNew(parts[0], headers)) {
                System.out.println(parts[0] + "\t" + parts[4]);
            }
        }
    }
}
