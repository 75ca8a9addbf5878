# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `paths` of `erb lab vm`, in the guest: a real Redis behind a virtio-net card is boosted in the driver's XDP, and
# all kinds of reads and writes come over another card. erb_work= and erb_only= are on the kernel's command line. Ends the guest.
# The verdict is the line `guest: N failed`.
only=$(word erb_only)
erb=$work/erb
address=10.77.0.2
target=$address:6379
shadow=127.0.0.1:6380
boosted=

check() {
	[[ $* == *$only* ]] || [ -z "$boosted" ] || return 0
	[ -z "$boosted" ] || echo "guest: chosen"
	local began=$SECONDS result=0
	echo "--- $*"
	"$@" >/run/said 2>&1 || result=$?
	if [ $result = 0 ]; then
		tail -n 4 /run/said
		echo "    $((SECONDS - began)) s"
		return
	fi
	tail -n 60 /run/said
	echo "guest: FAILED ($result): $*"
	failed=$((failed + 1))
	[ -z "$boosted" ] || server "$erb" status
}

client() {
	ip netns exec client "$@"
}

tool() {
	client "$erb" check "$@"
}

# end NAMESPACE DEVICE ADDRESS: that card is alone in it.
end() {
	ip netns add "$1" && ip link set "$2" netns "$1" && ip -n "$1" link set lo up &&
		ip -n "$1" address add "$3/24" dev "$2" && ip -n "$1" link set "$2" up
}

network() {
	end client eth0 10.77.0.1 && end server eth1 $address
}

answers() {
	[ "$(redis-cli "$@" ping 2>/dev/null)" = PONG ]
}

# The one that is boosted, and the one that its replies are compared with. Their names are looked up in their namespaces.
redis() {
	mkdir -p /run/redis /run/shadow
	server redis-server --bind $address 127.0.0.1 --protected-mode no --dir /run/redis --save '' --daemonize yes \
		--enable-debug-command local --logfile /run/redis.log >/dev/null &&
		client redis-server --port 6380 --bind 127.0.0.1 --dir /run/shadow --save '' --daemonize yes \
			--enable-debug-command local --logfile /run/shadow.log >/dev/null &&
		within 60 client redis-cli -h $address ping && within 60 client redis-cli -p 6380 ping
}

# Takes its name: no function of this file.
status() {
	server "$erb" status --json >/run/status.new && tr -d ' \n' </run/status.new >/run/status
}

# count NAME: that counter.
count() {
	status && sed -n "s/.*{\"name\":\"$1\",[^}]*\"count\":\([0-9]*\)}.*/\1/p" /run/status
}

serves() {
	status && grep -q '"serving":true' /run/status && grep -q '"admitting":true' /run/status
}

# It answers whether or not that pays here.
boost() {
	server "$erb" boost --dev eth1 --dev lo --redis 127.0.0.1:6379 "$@" && server "$erb" aside 0 && within 200 serves
}

no_invariant_is_broken() {
	[ "$(count INVARIANT)" = 0 ]
}

# In the driver, and which driver that is.
native_on_virtio() {
	status || return
	grep -o '"device":{"name":"eth1"[^}]*},"mode":"[a-z]*","why_not_native":"[^"]*"' /run/status
	grep -q '"device":{"name":"eth1"[^}]*},"mode":"native"' /run/status &&
		readlink /run/server-driver | grep '/virtio_net$' && server ip -details link show eth1 | grep -w xdp
}

# grew NAME COMMAND...: the counter is above what it was before the command.
grew() {
	local name=$1 before after
	shift
	before=$(count "$name")
	"$@" || return
	after=$(count "$name")
	echo "$name: ${before:-0} before, ${after:-0} now"
	[ "${after:-0}" -gt "${before:-0}" ]
}

get_40_times() {
	client redis-cli -h $address set greeting hello
	[ "$(client redis-cli -h $address -r 40 -i 0.02 get greeting | grep -c '^hello$')" = 40 ]
}

# big BYTES: a value of so many bytes, written and read, twenty times.
big() {
	local value
	value=$(head -c "$1" /dev/zero | tr '\0' v)
	client redis-cli -h $address set "big-$1" "$value" >/dev/null
	[ "$(client redis-cli -h $address -r 20 -i 0.02 get "big-$1" | grep -cx "$value")" = 20 ]
}

# write NAME: four clients at once, each one SET after the other; each says of itself what it was told.
write() {
	local number writers=()
	for number in 1 2 3 4; do
		seq 300 | sed "s/.*/SET $1-$number-& value-$1-$number-&/" | client redis-cli -h $address >"/run/said-$number" &
		writers+=($!)
	done
	wait "${writers[@]}"
	[ "$(cat /run/said-[1-4] | grep -c '^OK$')" = 1200 ]
}

# written NAME: those keys have their values, in Redis itself.
written() {
	local number
	for number in 1 2 3 4; do
		seq 300 | sed "s/.*/GET $1-$number-&/" | server redis-cli >/run/read &&
			seq 300 | sed "s/.*/value-$1-$number-&/" | cmp - /run/read || return
	done
	echo "1200 keys compared"
}

# What was answered is in Redis. In mode read nothing waits.
drained() {
	status && grep -q '"writes":{.*"waiting":0[,}]' /run/status
}

# All keys of both, by Redis's own sum of them.
same_data() {
	local one other
	one=$(server redis-cli debug digest)
	other=$(client redis-cli -p 6380 debug digest)
	echo "$(server redis-cli dbsize) and $(client redis-cli -p 6380 dbsize) keys, $one and $other"
	[ -n "$one" ] && [ "$one" = "$other" ]
}

empty() {
	server redis-cli flushall && client redis-cli -p 6380 flushall
}

# By force: clients that vanished are connections still.
detach() {
	server "$erb" detach --force && ! server ip -details link show eth1 | grep -w xdp
}

# compared NAME SECONDS [WORD...]: every reply is what a plain Redis says, and so is every key in the end.
compared() {
	local seconds=$2
	shift 2
	empty && tool shadow --target $target --shadow $shadow --conns 6 --seconds "$seconds" --stall-timeout 60 "$@" &&
		within 60 drained && same_data
}

# paths COUNTER: all kinds, in whatever mode; what that counts is among them each time.
paths() {
	check grew "$1" compared replies 20
	check grew "$1" tool history --target $target --conns 6 --ops 3000 --timeout 30
	check grew "$1" tool mixed --target $target --requests 600 --keys 20 --set-share 0.3
	check tool mixed --target $target --requests 600 --keys 20 --set-share 0.3 --incr
	check tool pipelines --target $target --shadow $shadow --turns 1 --seconds 2
	check tool churn --target $target --connections 300 --parallel 8 --vanish-every 20 --stall-timeout 60
	# The wire's other end listens to this console.
	echo "wire: loss=1% dup=0.5% reorder=2% corrupt=0.1% seed=7"
	sleep 1
	check grew "$1" compared faults 20
	check grew "$1" tool history --target $target --conns 6 --ops 1000 --timeout 60
	echo "wire: reset"
	sleep 1
	check no_invariant_is_broken
}

echo "guest: Linux $(uname -r), $(cut -d. -f1 /proc/uptime) s after its begin"
for module in virtio_net sch_ingress cls_bpf af_packet inet_diag tcp_diag; do
	modprobe -q "$module"
done
ln -s "$(readlink -f /sys/class/net/eth1/device/driver)" /run/server-driver
check network
check redis
check boost --mode read
boosted=1
check native_on_virtio
check grew FAST_GET get_40_times
check grew FAST_GET big 1000
check big 5000
check big 100000
paths FAST_GET
boosted=
check detach
check boost --mode write-back --journal none --hold-max 60s
boosted=1
check native_on_virtio
check grew ABSORBED write first
check within 60 drained
check written first
paths ABSORBED
boosted=
check detach
echo "guest: $failed failed, $(cut -d. -f1 /proc/uptime) s"
busybox poweroff -f
