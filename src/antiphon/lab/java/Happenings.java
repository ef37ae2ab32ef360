import java.util.ArrayList;
import java.util.List;

/**
 * What has happened in a process and when, such as changes of a view, until it is asked for. Those
 * beyond a number are dropped: what happens that often is told by the counts.
 */
final class Happenings {
    private static final int MOST = 1000;

    private final List<Long> times = new ArrayList<>();
    private final List<String> texts = new ArrayList<>();

    synchronized void add(String text) {
        if (texts.size() < MOST) {
            times.add(System.nanoTime());
            texts.add(text);
        }
    }

    /** Puts them into an answer, and forgets them. */
    synchronized void take(Facts answer) {
        answer.put("views_ns", times.stream().mapToLong(Long::longValue).toArray());
        answer.put("views", texts.toArray(new String[0]));
        times.clear();
        texts.clear();
    }
}
