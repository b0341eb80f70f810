// Reads a payload by its claim check: java Reader URL SIZE SHA256. Writes the payload to standard output.

import java.net.URI;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Map;
import software.amazon.awssdk.services.s3.S3Client;

class Reader {
    /** The payload of a record: its value, or what its headers refer to. */
    static byte[] payload(S3Client s3, byte[] value, Map<String, String> headers) throws Exception {
        String url = headers.get("claim-check-url");
        if (url == null) {
            return value;
        }
        URI place = URI.create(url);
        String key = place.getPath().substring(1);
        byte[] content = s3.getObjectAsBytes(get -> get.bucket(place.getAuthority()).key(key)).asByteArray();
        if (content.length != Long.parseLong(headers.get("claim-check-size"))) {
            throw new IllegalStateException("the object has another size than the payload");
        }
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(content);
        if (!HexFormat.of().formatHex(digest).equals(headers.get("claim-check-sha256"))) {
            throw new IllegalStateException("the object has another digest than the payload");
        }
        return content;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> headers = Map.of(
            "claim-check-url", arguments[0],
            "claim-check-size", arguments[1],
            "claim-check-sha256", arguments[2]);
        // Login, region and endpoint are those of the environment. A store that is not AWS needs forcePathStyle.
        try (S3Client s3 = S3Client.builder().forcePathStyle(true).build()) {
            System.out.write(payload(s3, new byte[0], headers));
            System.out.flush();
        }
    }
}
