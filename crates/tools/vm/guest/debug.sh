# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# What a guest asks of the kernel that debug-kernel.sh builds, before its checks and behind them; stands before the scripts that
# use it. On other kernels it asks nothing. erb_debug=1 on the kernel's command line says that it is that kernel.

debug=/sys/kernel/debug
leaks=$debug/kmemleak

# What was left before the first check is nobody's of ours. Allocations fail where a check asks for that, whatever they are
# for, and without a word.
debug_begin() {
	local of
	mount -t debugfs debugfs $debug 2>/dev/null
	if [ ! -e $leaks ]; then
		! grep -qw erb_debug=1 /proc/cmdline
		return
	fi
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
