// SPDX-License-Identifier: Apache-2.0 OR MIT

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;

/**
 * Jedis as `check clients` runs it: library defaults, every reply verified.
 *
 * <p>Usage: Client HOST PORT PROTOCOL REPEATS PREFIX. One JSON line per event on stdout; after
 * "connected" it waits for a line on stdin, after "done" the connection stays open until stdin
 * closes.
 */
public final class Client {
  private static void say(String event, String name, String value) {
    String escaped = value.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n");
    System.out.println("{\"event\":\"" + event + "\",\"" + name + "\":\"" + escaped + "\"}");
    System.out.flush();
  }

  private static void expect(String what, Object got, Object want) {
    if (!Objects.equals(got, want)) {
      throw new IllegalStateException(what + ": got " + got + ", expected " + want);
    }
  }

  private static void pipelined(JedisPooled jedis, String key) {
    List<Response<String>> gets = new ArrayList<>();
    try (Pipeline pipe = jedis.pipelined()) {
      for (int i = 0; i < 10; i++) {
        pipe.set(key, Integer.toString(i));
        gets.add(pipe.get(key));
      }
    }
    for (int i = 0; i < 10; i++) {
      expect("pipeline GET", gets.get(i).get(), Integer.toString(i));
    }
  }

  private static void work(JedisPooled jedis, int repeats, String prefix) {
    String key = prefix + ":k";
    String counter = prefix + ":n";
    String gone = prefix + ":gone";
    byte[] binary = {'\r', '\n', 0, (byte) 0xff};
    byte[] goneBytes = gone.getBytes(StandardCharsets.UTF_8);
    jedis.del(key, counter, gone);
    expect("SET", jedis.set(key, "value"), "OK");
    expect("GET", jedis.get(key), "value");
    for (long n = 1; n <= 3; n++) {
      expect("INCR", jedis.incr(counter), n);
    }
    expect("SET", jedis.set(goneBytes, binary), "OK");
    expect("GET binary", Arrays.equals(jedis.get(goneBytes), binary), true);
    expect("EXPIRE", jedis.expire(gone, 86400), 1L);
    expect("DEL", jedis.del(gone), 1L);
    expect("GET after DEL", jedis.get(gone), null);
    pipelined(jedis, key);
    for (int i = 0; i < repeats; i++) {
      expect("repeated GET", jedis.get(key), "9");
    }
  }

  /** Protocol 2 is the library's default; 3 is asked for explicitly. */
  private static JedisPooled connect(String host, int port, String protocol) {
    if (protocol.equals("3")) {
      HostAndPort address = new HostAndPort(host, port);
      return new JedisPooled(address, DefaultJedisClientConfig.builder().resp3().build());
    }
    return new JedisPooled(host, port);
  }

  /** The version that the library itself reports to Redis. */
  private static String version() throws IOException {
    Properties properties = new Properties();
    try (InputStream in = JedisPooled.class.getResourceAsStream("pom.properties")) {
      if (in != null) {
        properties.load(in);
      }
    }
    return properties.getProperty("version", "unknown");
  }

  public static void main(String[] args) throws Exception {
    try (JedisPooled jedis = connect(args[0], Integer.parseInt(args[1]), args[2])) {
      try {
        expect("PING", jedis.ping(), "PONG");
        say("connected", "version", version());
        for (int next = 0; next >= 0 && next != '\n'; ) {
          next = System.in.read();
        }
        work(jedis, Integer.parseInt(args[3]), args[4]);
        say("done", "client", "jedis");
      } catch (RuntimeException error) {
        say("failed", "error", error.toString());
      }
      while (System.in.read() >= 0) {
        // The connection is held until the parent closes our stdin.
      }
    }
  }
}
