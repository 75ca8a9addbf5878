#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# kmod-test.sh - builds the kernel module for another kernel than the one that runs, and tries it there: is each record
# that was pushed in a file, whatever becomes of disk and daemon (docs/internals/module.md)?
#
#   scripts/vm/kmod-test.sh [--build] [SERIES...]
#
# SERIES is like 6.12, which it is if nothing is said: its newest kernel of which Debian has image and headers, and whose
# headers this machine can use (those of Debian 13 need a Debian 13). --build: no guest is started,
# and where no headers can be had nothing is built.
#
# Kernel and headers are downloaded (110 MB) and unpacked under target/vm, never installed. Installed are QEMU,
# busybox-static, cpio, kmod, xz-utils, e2fsprogs, iproute2 and pahole, if they are missing. The guest is emulated:
# what it shows is right or wrong, not fast or slow. Needs root, Debian's keys, 1 GB of memory.
#
#   ERB_CYCLES=30    times that the module is inserted and removed
#   ERB_ONLY=NAME    only checks with NAME in their names
#   ERB_MEMORY=1G, ERB_SLOW=1, ERB_WORDS=    of the guest: its memory, how many times the usual patience, what else its
#                    kernel is told (debug-kernel.sh)
#
# Exit code 0: all checks passed on all kernels. What they said is in target/vm/kmod-SERIES.log.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh
# shellcheck source=scripts/vm/headers.sh
. scripts/vm/headers.sh

proof=crates/proof/kmod

# libbpf as the product has it: older ones cannot load a weak kfunc of a module.
kmod_libbpf() {
	cargo build --release --locked --package libbpf-sys --message-format=json >"$vm/build.json"
	sed -n '/"reason":"build-script-executed"/ s/.*libbpf-sys.*"out_dir":"\([^"]*\)".*/\1/p' "$vm/build.json"
}

# What pushes, and what checks.
kmod_guest() {
	local libbpf clang
	libbpf=$(kmod_libbpf)
	clang=$(setup_clang_found)
	[ -n "$clang" ] || die "no clang: ./test installs it"
	"$clang" -target bpf -O2 -g -Wall -Werror -mcpu=v3 -I bpf -I "$libbpf/include" \
		-idirafter "/usr/include/$(gcc -print-multiarch)" -c "$proof/bpf/push.bpf.c" -o "$vm/kmod/push.bpf.o"
	cc -O1 -g -Wall -Werror -D_GNU_SOURCE -I kmod -I bpf -I "$proof/bpf" -I "$libbpf/include" "$proof"/guest/*.c \
		"$libbpf/libbpf.a" -lelf -lz -lpthread -o "$vm/kmod/guest"
}

kmod_run() {
	local image=$1 series=$2
	vm_kernel "$image"
	vm_initrd "$image"
	kmod_guest
	say "starting $image, for at most $GUEST_SECONDS_MAX s"
	vm_run "$image" scripts/vm/kmod-guest.sh "${ERB_MEMORY:-1G}" "erb_cycles=${ERB_CYCLES:-30} erb_only=${ERB_ONLY:-} \
erb_slow=${ERB_SLOW:-1} kfence.sample_interval=1 slub_debug=FZPU page_poison=1 ${ERB_WORDS:-}" -M q35 || say "the guest did not end by itself"
	cp "$vm/log" "$vm/kmod-$series.log"
	grep -q '^guest: 0 failed' "$vm/log"
}

setup_root
run=1 optional=
if [ "${1-}" = --build ]; then
	run= optional=1
	shift
fi
setup_rust run
if [ -n "$run" ]; then
	vm_packages e2fsprogs iproute2 pahole
else
	vm_installs pahole xz-utils
fi
vm_suites "${SUITES[@]}"
[ $# -gt 0 ] || set -- 6.12
failed=()
for series in "$@"; do
	image=$(headers_newest "$series")
	if [ -z "$image" ]; then
		[ -z "$run" ] || die "no kernel of $series with headers that this machine can use in ${SUITES[*]}"
		say "skipped: headers of $series cannot be had on this system"
		continue
	fi
	kmod_build "$image"
	[ -z "$run" ] || kmod_run "$image" "$series" || failed+=("$series ($image)")
done
[ ${#failed[@]} -eq 0 ] || die "not all is as it should be on ${failed[*]}: see $vm/kmod-*.log"
[ -z "$run" ] || say "all checks passed"
