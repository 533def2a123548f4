/**
 * Requests by java.net.http.HttpClient, many at a time: in HTTP/1.1 and with the client's default, which asks for HTTP/2
 * by an upgrade (h2c) with every first request of a connection; GET and POST, small bodies and large ones.
 *
 *     java JavaClient.java PORT REQUESTS SEED EXPECTED      EXPECTED: the items of the answer, as i3,i4,...
 *
 * Prints a line for each kind of request and what came of it, with their number.
 */
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

public class JavaClient {
    static final int AT_ONCE = 16;
    static final Pattern ITEM = Pattern.compile("\"item\":\"(\\w+)\"");

    public static void main(String[] arguments) {
        String url = "http://127.0.0.1:" + arguments[0];
        Random draw = new Random(Long.parseLong(arguments[2]));
        String denied = "\"x\",".repeat(50_000) + "\"x\""; // ids that no item has: 200 kB that change no answer
        TreeMap<String, Integer> counts = new TreeMap<>();
        List<HttpClient> clients = List.of(
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build(), HttpClient.newHttpClient());
        for (int sent = 0; sent < Integer.parseInt(arguments[1]); sent += AT_ONCE) {
            List<CompletableFuture<String>> outcomes = new ArrayList<>();
            for (int one = 0; one < AT_ONCE; one++) {
                HttpClient client = clients.get(draw.nextInt(2));
                String size = List.of("GET", "small POST", "large POST").get(draw.nextInt(3));
                String body = "{\"session\": [\"i3\"], \"k\": 5" + (size.startsWith("large") ? ", \"deny\": [" + denied + "]}" : "}");
                HttpRequest.Builder request = HttpRequest.newBuilder().timeout(Duration.ofSeconds(60));
                if (size.equals("GET")) {
                    request.uri(URI.create(url + "/v1/items?query=i3"));
                } else {
                    request.uri(URI.create(url + "/v1/recommend")).header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body));
                }
                String kind = size + (client == clients.get(0) ? " in HTTP/1.1: " : " with an upgrade: ");
                outcomes.add(client.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString()).handle(
                    (answer, error) -> kind + (error == null ? outcome(answer, arguments[3]) : "failed, " + error)));
            }
            outcomes.forEach(outcome -> counts.merge(outcome.join(), 1, Integer::sum));
        }
        counts.forEach((outcome, number) -> System.out.println(number + " " + outcome));
        System.exit(0); // the clients' threads would keep the process
    }

    static String outcome(HttpResponse<String> answer, String expected) {
        String items = ITEM.matcher(answer.body()).results().map(found -> found.group(1)).collect(Collectors.joining(","));
        boolean wrong = answer.request().method().equals("POST") && !items.equals(expected);
        return answer.statusCode() != 200 ? "failed, status " + answer.statusCode()
            : wrong ? "failed, other items " + items : "right";
    }
}
