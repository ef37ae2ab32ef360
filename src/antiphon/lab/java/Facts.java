import java.util.LinkedHashMap;
import java.util.Map;

/**
 * One order or one answer: a flat JSON object on a line.
 *
 * <p>Written by hand because the JDK has no JSON and a jar would be one more thing to install. What
 * is read may hold strings, numbers, booleans and null; what is written may also hold arrays of
 * longs and of strings.
 */
final class Facts {
    private final Map<String, Object> values = new LinkedHashMap<>();

    Facts put(String name, Object value) {
        values.put(name, value);
        return this;
    }

    String text(String name, String otherwise) {
        Object value = values.get(name);
        return value == null ? otherwise : value.toString();
    }

    double number(String name, double otherwise) {
        Object value = values.get(name);
        if (value == null) {
            return otherwise;
        }
        if (!(value instanceof Double)) {
            throw new IllegalArgumentException(name + " is not a number: " + value);
        }
        return (Double) value;
    }

    /** A whole number, exact up to 2^53: sizes, counts and ports, never a time in nanoseconds. */
    long whole(String name, long otherwise) {
        return (long) number(name, otherwise);
    }

    boolean truth(String name) {
        return Boolean.TRUE.equals(values.get(name));
    }

    static Facts parse(String line) {
        return new Parser(line).object();
    }

    @Override
    public String toString() {
        StringBuilder out = new StringBuilder("{");
        for (Map.Entry<String, Object> entry : values.entrySet()) {
            if (out.length() > 1) {
                out.append(", ");
            }
            quote(out, entry.getKey());
            out.append(": ");
            write(out, entry.getValue());
        }
        return out.append('}').toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value instanceof long[]) {
            String separator = "[";
            for (long element : (long[]) value) {
                out.append(separator).append(element);
                separator = ",";
            }
            out.append(((long[]) value).length == 0 ? "[]" : "]");
        } else if (value instanceof String[]) {
            String separator = "[";
            for (String element : (String[]) value) {
                out.append(separator);
                quote(out, element);
                separator = ",";
            }
            out.append(((String[]) value).length == 0 ? "[]" : "]");
        } else if (value instanceof Number || value instanceof Boolean || value == null) {
            out.append(value);
        } else {
            quote(out, value.toString());
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    private static final class Parser {
        private final String text;
        private int at;

        Parser(String text) {
            this.text = text;
        }

        Facts object() {
            Facts facts = new Facts();
            expect('{');
            if (peek() == '}') {
                at++;
                return facts;
            }
            while (true) {
                String name = string();
                expect(':');
                facts.values.put(name, value());
                if (peek() == '}') {
                    at++;
                    return facts;
                }
                expect(',');
            }
        }

        private Object value() {
            if (peek() == '"') {
                return string();
            }
            int start = at;
            while (at < text.length() && ",} ".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String word = text.substring(start, at);
            switch (word) {
                case "true":
                    return Boolean.TRUE;
                case "false":
                    return Boolean.FALSE;
                case "null":
                    return null;
                default:
                    if (word.startsWith("[") || word.startsWith("{")) {
                        throw new IllegalArgumentException("orders are flat: " + word);
                    }
                    return Double.valueOf(word);
            }
        }

        private String string() {
            expect('"');
            StringBuilder out = new StringBuilder();
            while (true) {
                char c = text.charAt(at++);
                if (c == '"') {
                    return out.toString();
                }
                if (c != '\\') {
                    out.append(c);
                    continue;
                }
                char escaped = text.charAt(at++);
                int plain = "nrtbf".indexOf(escaped);
                if (plain >= 0) {
                    out.append("\n\r\t\b\f".charAt(plain));
                } else if (escaped == 'u') {
                    out.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                } else {
                    out.append(escaped);
                }
            }
        }

        private char peek() {
            while (at < text.length() && text.charAt(at) == ' ') {
                at++;
            }
            if (at == text.length()) {
                throw new IllegalArgumentException("not a JSON object: " + text);
            }
            return text.charAt(at);
        }

        private void expect(char wanted) {
            if (peek() != wanted) {
                throw new IllegalArgumentException("no " + wanted + " at " + at + " of " + text);
            }
            at++;
        }
    }
}
