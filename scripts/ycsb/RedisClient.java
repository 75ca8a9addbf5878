// SPDX-License-Identifier: Apache-2.0 OR MIT

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

/**
 * YCSB's client speaks to a Redis by this. A record is a hash, and the sorted set {@code _indices} has all
 * keys, for scans, as in YCSB's own binding, which Maven Central does not have. With {@code
 * redis.records=string} a record is one string: its fields' values, one after the other. YCSB then has to write
 * all fields ({@code writeallfields=true}), and whoever reads gets all of them.
 */
public final class RedisClient extends DB {
	private static final String INDEX = "_indices";
	private static final String WHOLE = "record";

	private Jedis jedis;
	private boolean isString;

	@Override
	public void init() throws DBException {
		String host = getProperties().getProperty("redis.host", "127.0.0.1");
		String port = getProperties().getProperty("redis.port", String.valueOf(Protocol.DEFAULT_PORT));
		String timeout = getProperties().getProperty("redis.timeout_ms", "20000");
		isString = getProperties().getProperty("redis.records", "hash").equals("string");
		if (isString && !Boolean.parseBoolean(getProperties().getProperty("writeallfields"))) {
			throw new DBException("redis.records=string needs writeallfields=true");
		}
		jedis = new Jedis(host, Integer.parseInt(port), Integer.parseInt(timeout));
		jedis.connect();
	}

	@Override
	public void cleanup() {
		jedis.close();
	}

	/** Scans go by this order; equal places are told apart by the key. */
	private static double place(String key) {
		return key.hashCode();
	}

	private static String joined(Map<String, ByteIterator> values) {
		StringBuilder all = new StringBuilder();
		values.forEach((field, value) -> all.append(value));
		return all.toString();
	}

	@Override
	public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
		if (isString) {
			byte[] value = jedis.get(key.getBytes());
			if (value == null) {
				return Status.NOT_FOUND;
			}
			result.put(WHOLE, new ByteArrayByteIterator(value));
		} else if (fields == null) {
			StringByteIterator.putAllAsByteIterators(result, jedis.hgetAll(key));
		} else {
			String[] names = fields.toArray(new String[0]);
			int at = 0;
			for (String value : jedis.hmget(key, names)) {
				if (value == null) {
					return Status.NOT_FOUND;
				}
				result.put(names[at++], new StringByteIterator(value));
			}
		}
		return result.isEmpty() ? Status.NOT_FOUND : Status.OK;
	}

	@Override
	public Status insert(String table, String key, Map<String, ByteIterator> values) {
		Status written = update(table, key, values);
		if (!written.isOk()) {
			return written;
		}
		jedis.zadd(INDEX, place(key), key);
		return Status.OK;
	}

	@Override
	public Status update(String table, String key, Map<String, ByteIterator> values) {
		String said = isString
			? jedis.set(key, joined(values))
			: jedis.hmset(key, StringByteIterator.getStringMap(values));
		return said.equals("OK") ? Status.OK : Status.ERROR;
	}

	@Override
	public Status delete(String table, String key) {
		boolean isGone = jedis.del(key) == 1;
		boolean isNamedNoMore = jedis.zrem(INDEX, key) == 1;
		return isGone && isNamedNoMore ? Status.OK : Status.NOT_FOUND;
	}

	@Override
	public Status scan(String table, String from, int count, Set<String> fields,
		Vector<HashMap<String, ByteIterator>> result) {
		for (String key : jedis.zrangeByScore(INDEX, place(from), Double.POSITIVE_INFINITY, 0, count)) {
			HashMap<String, ByteIterator> record = new HashMap<>();
			Status found = read(table, key, fields == null ? null : new HashSet<>(fields), record);
			if (!found.isOk()) {
				return found;
			}
			result.add(record);
		}
		return Status.OK;
	}
}
