# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# debug-guest.sh - what a guest asks of the kernel that debug-kernel.sh builds. Sourced by the guests' scripts; on other
# kernels it asks nothing.

debug=/sys/kernel/debug
leaks=$debug/kmemleak

# What was left before the first check is nobody's of ours. Allocations fail where a check asks for that, whatever they are
# for, and without a word.
debug_begin() {
	local of
	mount -t debugfs debugfs $debug 2>/dev/null
	[ -e $leaks ] || return 0
	echo scan >$leaks
	echo clear >$leaks
	for of in $debug/failslab $debug/fail_page_alloc; do
		echo 0 >$of/verbose
		echo N >$of/ignore-gfp-wait
	done
	echo N >$debug/fail_page_alloc/ignore-gfp-highmem
	echo 0 >$debug/fail_page_alloc/min-order
}

# Nothing has leaked, and until here the kernel has looked: after its first complaint lockdep looks no more. What is younger
# than five seconds is not told; twice, as a pointer may be on its way while it is looked for.
debug_end() {
	[ -e $leaks ] || return 0
	sleep 6
	echo scan >$leaks
	echo scan >$leaks
	! grep . $leaks || return
	grep -q 'debug_locks: *1$' /proc/lockdep_stats && dmesg | grep -q 'KernelAddressSanitizer initialized' || return
	echo "guest: lockdep, KASAN and kmemleak are at work"
}
