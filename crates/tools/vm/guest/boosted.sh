# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# A real Redis, boosted with a kernel module as its journal's sink, and clients of another network. Stands before the scripts that use
# it.
# SETs of each of four clients, each time.
sets=500
erb=$work/erb
disk=/run/disk
journal=$disk/journal

# number WORD...: what the status has there; a counter's name is one word of it.
number() {
	server "$erb" status --json >/run/status.new && mv /run/status.new /run/status
	python3 -c 'import functools, json, sys
status = json.load(open("/run/status"))
status.update({one["name"]: one["count"] for one in status["counters"]})
print(functools.reduce(lambda at, word: at[word], sys.argv[1:], status))' "$@"
}

is_open() {
	[ "$(number writes open)" = True ]
}

is_drained() {
	[ "$(number writes waiting)" = 0 ]
}

network() {
	ip netns add server && ip link add c0 type veth peer name s0 netns server
	ip address add 10.9.0.2/24 dev c0 && ip link set c0 up
	server ip address add 10.9.0.1/24 dev s0 && server ip link set s0 up && server ip link set lo up
}

redis() {
	server redis-server --bind 10.9.0.1 127.0.0.1 --protected-mode no --dir /run/redis --save '' --appendonly yes \
		--appendfsync everysec --daemonize yes --logfile /run/redis.log >/dev/null
	within 60 redis_answers
}

# begin SINK [WORD...]
begin() {
	local sink=$1
	shift
	server "$erb" boost --dev s0 --dev lo --redis 127.0.0.1:6379 --mode write-back --journal all --journal-sink "$sink" \
		--journal-dir $journal --hold-max 60s "$@" >/run/boost 2>&1 || ! cat /run/boost || return
	within 60 is_sink "$sink"
}

is_sink() {
	[ "$(number writes journal sink)" = "$1" ]
}

# boost SINK [WORD...]
boost() {
	begin "$@" && within 200 is_open
}

# write NAME: four clients at once, each one SET after the other; each says of itself what it was told.
write() {
	local client
	for client in 1 2 3 4; do
		seq "$sets" | sed "s/.*/SET $1-$client-& value-$1-$client-&/" | redis-cli -h 10.9.0.1 >"/run/said-$client" &
		writers[client]=$!
	done
	wait "${writers[@]}"
	[ "$(cat /run/said-[1-4] | grep -c '^OK$')" = $((4 * sets)) ]
}
