#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# YCSB's own client (Java) against Redis alone, boosted, and boosted in the mode write-back, in a lab each, in turn.
# Needs root, a JDK, Maven, and network for the first time: YCSB and Jedis come from Maven Central. RedisClient.java is
# the binding.
#
#   scripts/ycsb/run.sh [--workloads "a b c d f"] [--servers "redis read write-back"] [--records 10000]
#                       [--operations 100000] [--threads 16] [--rounds 3] [--record hash|string]
#
# A record has ten fields of 100 bytes, as YCSB's default is: a hash, or one string. Data is loaded anew for each run, and
# a run of as many operations goes before the one that counts.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

workloads="a b c d f" servers="redis read write-back" records=10000 operations=100000 threads=16 rounds=3 record=hash
while [ $# -gt 0 ]; do
	case $1 in
	--workloads | --servers | --records | --operations | --threads | --rounds | --record)
		[ $# -gt 1 ] || { echo "error: $1 wants a word" >&2 && exit 2; }
		printf -v "${1#--}" '%s' "$2"
		shift 2
		;;
	*)
		sed -n '3,11s/^# \{0,1\}//p' "$0"
		[ "$1" = --help ] && exit 0
		exit 2
		;;
	esac
done
# The proportions of YCSB's own workload files, which its jar does not have: read, update, insert, read and modify.
mix() {
	case $1 in
	a) echo 0.5 0.5 0 0 zipfian ;;
	b) echo 0.95 0.05 0 0 zipfian ;;
	c) echo 1 0 0 0 zipfian ;;
	d) echo 0.95 0 0.05 0 latest ;;
	f) echo 0.5 0 0 0.5 zipfian ;;
	*) echo "error: no workload $1: a, b, c, d, f" >&2 && return 1 ;;
	esac
}

for workload in $workloads; do mix "$workload" >/dev/null || exit 2; done
for tool in javac mvn redis-cli; do
	command -v "$tool" >/dev/null || {
		echo "error: $tool is missing: apt-get install default-jdk-headless maven redis-tools" >&2
		exit 1
	}
done

target=${CARGO_TARGET_DIR:-target}
erb=${ERB_BIN:-$target/release/erb}
[ -x "$erb" ] || { echo "error: $erb is not built: cargo build --release -p erb -p erb-tools" >&2 && exit 1; }
build=$(mkdir -p "$target/ycsb/classes" && readlink -f "$target/ycsb")
[ -e "$build/lib/got" ] || {
	mvn -q -B -Dstyle.color=never -f scripts/ycsb/pom.xml dependency:copy-dependencies -DoutputDirectory="$build/lib" >&2
	touch "$build/lib/got"
}
javac -cp "$build/lib/*" -d "$build/classes" scripts/ycsb/RedisClient.java
work=$(mktemp -d)

down() {
	local server
	for server in $servers; do "$erb" lab down --name "ycsb-$server" >/dev/null || true; done
	rm -rf "$work"
}
trap down EXIT
trap 'exit 130' INT TERM

mode() { [ "$1" = redis ] && echo off || echo "$1"; }
inside() { "$erb" lab exec --name "ycsb-$1" client -- "${@:2}"; }

for server in $servers; do
	"$erb" lab up --name "ycsb-$server" --direct --mode "$(mode "$server")" \
		--redis-arg appendonly=yes --redis-arg appendfsync=everysec >"$work/$server.lab"
done

# ycsb SERVER WORKLOAD -load|-t
ycsb() {
	local read update insert modify keys all=false
	read -r read update insert modify keys < <(mix "$2")
	[ "$record" = string ] && all=true
	inside "$1" java -cp "$build/lib/*:$build/classes" site.ycsb.Client "$3" -db RedisClient -threads "$threads" \
		-p redis.host=10.77.0.2 -p redis.records="$record" -p writeallfields="$all" \
		-p workload=site.ycsb.workloads.CoreWorkload -p recordcount="$records" -p operationcount="$operations" \
		-p readproportion="$read" -p updateproportion="$update" -p insertproportion="$insert" \
		-p readmodifywriteproportion="$modify" -p scanproportion=0 -p requestdistribution="$keys" \
		-p measurementtype=hdrhistogram -p hdrhistogram.percentiles=50,99,99.9 2>"$work/err" || {
		cat "$work/err" >&2
		return 1
	}
}

# What ERB has answered so far in a lab: reads, SETs.
answered() {
	local dir
	dir=$(sed -n 's/^ *files *\(.*\), pins in .*/\1/p' "$work/$1.lab")
	"$erb" status --run-dir "$dir" | awk '
		$2 ~ /^FAST_(GET|HMGET|HGETALL)$/ { reads += $1 } $2 == "ABSORBED" { sets += $1 }
		END { print reads + 0, sets + 0 }'
}

for workload in $workloads; do
	for ((round = 1; round <= rounds; round++)); do
		for server in $servers; do
			inside "$server" redis-cli -h 10.77.0.2 flushall >/dev/null
			ycsb "$server" "$workload" -load >"$work/load"
			# ERB steps aside while data is loaded, and has to see that look-ups pay.
			ycsb "$server" "$workload" -t >"$work/warm-up"
			before="0 0" after="0 0"
			[ "$server" = redis ] || before=$(answered "$server")
			ycsb "$server" "$workload" -t >"$work/run"
			[ "$server" = redis ] || after=$(answered "$server")
			awk -F ', ' -v what="$workload $server" -v before="$before" -v after="$after" '
				BEGIN { split(before, b, " "); split(after, a, " ") }
				{ gsub(/[][]/, "", $1) }
				$2 ~ /^Throughput/ { rate = $3 }
				$2 == "Operations" && $1 !~ /CLEANUP/ { count[$1] = $3 }
				$2 ~ /PercentileLatency/ { p[$1 ":" $2 + 0] = $3 }
				$2 ~ /^Return=/ && $2 != "Return=OK" { bad += $3 }
				END {
					for (op in count)
						print what, op, count[op], rate, p[op ":50"], p[op ":99"], p[op ":99.9"], bad + 0, a[1] - b[1], a[2] - b[2]
				}' "$work/run" >>"$work/rows"
			awk -F ', ' -v what="$workload, round $round, $server" \
				'$2 ~ /^Throughput/ { printf "%s: %d requests/s\n", what, $3 }' "$work/run" >&2
		done
	done
done

# Medians of the rounds. Requests/s are of the whole workload.
printf '%-8s %-10s %-18s %9s %10s %8s %8s %9s %7s %8s %8s\n' \
	workload server operation count requests/s 'p50 us' 'p99 us' 'p99.9 us' failed 'reads, %' 'SETs, %'
awk '
	function median(list,   n, v, i, j, t) {
		n = split(list, v, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
		return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
	}
	{
		key = $1 " " $2 " " $3
		if (!(key in seen)) { seen[key] = ++keys; name[keys] = key }
		for (i = 4; i <= NF; i++) all[key, i] = all[key, i] " " $i
		share = $4 ? 100 / $4 : 0
		reads[key] = reads[key] " " ($3 == "READ" ? $10 * share : 0)
		sets[key] = sets[key] " " ($3 ~ /^(UPDATE|INSERT)$/ ? $11 * share : 0)
	}
	END {
		for (k = 1; k <= keys; k++) {
			split(name[k], n, " ")
			key = name[k]
			printf "%-8s %-10s %-18s %9d %10d %8d %8d %9d %7d %8.1f %8.1f\n", n[1], n[2], n[3], median(all[key, 4]), \
				median(all[key, 5]), median(all[key, 6]), median(all[key, 7]), median(all[key, 8]), median(all[key, 9]), \
				median(reads[key]), median(sets[key])
		}
	}' "$work/rows"
