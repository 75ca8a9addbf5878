#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# debug-kernel.sh - tries the kernel module on a kernel that looks for mistakes itself: KASAN, lockdep, kmemleak and others
# that Debian's kernels do not have (debug-kernel.config; docs/internals/module.md).
#
#   scripts/vm/debug-kernel.sh [--build] [kmod|sink...]
#
# kmod: what kmod-test.sh tries, which is what is done if nothing is said; sink: what sink-test.sh tries. --build: the
# kernel is built, and no guest is started.
#
# Debian's linux-source of the series 6.12 is downloaded (150 MB) and built below target/vm: 3 GB, and half an hour with
# two processors; once for each source, configuration and compiler. Installed is what that needs, if it is missing.
#
#   ERB_JOBS=N           processes of the build; one for each processor if nothing is said
#   ERB_CYCLES, ERB_ONLY, ERB_SETS, ERB_PROFILE, GUEST_SECONDS_MAX    as in those tests
#
# Exit code 0: all checks passed, and the kernel has complained of nothing. What it said is in target/vm/NAME-debug.log.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh

series=6.12
config=scripts/vm/debug-kernel.config
# What each of its complaints has. A failed allocation is none: a check asks for them.
complaints='WARNING:|\bBUG\b|Oops|general protection|KASAN|UBSAN|blocked for more than|INFO: (task|rcu|trying)|corruption|ODEBUG'
complaints+='|locking correctness validator|suspicious RCU usage|unreferenced object|[0-9] new suspected memory leaks'

# The newest source, as NAME=VERSION.
debug_source() {
	apt-cache madison "linux-source-$series" | awk -F ' *[|] *' '{ gsub(/ /, "", $1); print $1 "=" $2 }' | sort -V | tail -n 1
}

# debug_unpack SOURCE: says the folder.
debug_unpack() {
	local root=$vm/${1/=/-}
	if [ ! -e "$root/done" ]; then
		say "unpacking $1"
		rm -rf "$root"
		mkdir -p "$root/deb"
		(cd "$root/deb" && apt-get -qq -o APT::Sandbox::User=root download "$1") >&2 || die "apt cannot download $1"
		dpkg -x "$root"/deb/*.deb "$root"
		tar -xJf "$root"/usr/src/linux-source-*.tar.xz -C "$root"
		rm -r "$root/deb" "$root/usr"
		touch "$root/done"
	fi
	echo "$root/linux-source-$series"
}

# debug_config SOURCE BUILD: what is asked for, and nothing else. A line that the kernel's rules do not let stand fails.
debug_config() {
	local line missing=()
	make -s -C "$1" O="$2" KCONFIG_ALLCONFIG="$PWD/$config" allnoconfig >&2
	while read -r line; do
		grep -qxF "$line" "$2/.config" || missing+=("$line")
	done < <(grep '^CONFIG_' "$config")
	[ ${#missing[@]} -eq 0 ] || die "the kernel cannot have it so: ${missing[*]}"
}

# debug_build SOURCE FOLDER: the folder is then what vm_kernel makes of a package; headers are those of the build.
debug_build() {
	local release
	mkdir -p "$2/build"
	debug_config "$1" "$2/build"
	say "building the kernel: what it says is in $2/said"
	make -C "$1" O="$2/build" -j "${ERB_JOBS:-$(nproc)}" bzImage modules >"$2/said" 2>&1 ||
		{ tail -n 30 "$2/said" >&2; die "the kernel does not build"; }
	make -s -C "$1" O="$2/build" INSTALL_MOD_PATH="$2" modules_install >&2
	release=$(make -s -C "$1" O="$2/build" kernelrelease)
	mkdir -p "$2/boot"
	cp "$2/build/arch/x86/boot/bzImage" "$2/boot/vmlinuz-$release"
	rm -f "$2/lib/modules/$release/build" "$2/build/vmlinux.o"
	touch "$2/done"
}

# debug_kernel: built if it is not, and from then on the kernel of the series `debug`.
debug_kernel() {
	local source folder
	source=$(debug_source)
	[ -n "$source" ] || die "no linux-source-$series in ${SUITES[*]}"
	folder=linux-debug-$({ echo "$source" && cat "$config" && gcc -v 2>&1 && pahole --version; } | sha256sum | cut -c 1-12)
	[ -e "$vm/$folder/done" ] || debug_build "$(debug_unpack "$source")" "$vm/$folder"
	ln -sfn "$folder" "$vm/linux-debug"
	say "$source is built as $folder"
}

# debug_judge LOG: whether the kernel looked until the end, and complained of nothing.
debug_judge() {
	! grep -nE "$complaints" "$1" || return
	grep -q '^guest: lockdep, KASAN and kmemleak are at work' "$1" && grep -q '^guest: 0 failed' "$1"
}

# debug_try kmod|sink: all that the kernel says is in the log, so nothing is lost with a ring that is full.
debug_try() {
	local result=0
	ERB_MEMORY=2G ERB_SLOW=5 ERB_WORDS=ignore_loglevel \
		"scripts/vm/$1-test.sh" debug || result=$?
	debug_judge "$vm/$1-debug.log" && [ $result = 0 ]
}

# Each kind of complaint is found.
debug_judge_tried() {
	local line found=0 lines=0
	while read -r line; do
		lines=$((lines + 1))
		! grep -qE "$complaints" <<<"$line" || found=$((found + 1))
	done < <(grep -v "^#" scripts/vm/debug-complaints.txt)
	[ $found = $lines ] || die "$found of $lines complaints are known as such"
}

setup_root
debug_judge_tried
run=1
if [ "${1-}" = --build ]; then
	run=
	shift
fi
vm_packages flex bison bc pahole libelf-dev
vm_suites "${SUITES[@]}"
debug_kernel
[ -n "$run" ] || exit 0
unset APT_CONFIG
failed=()
[ $# -gt 0 ] || set -- kmod
for name in "$@"; do
	debug_try "$name" || failed+=("$name")
done
[ ${#failed[@]} -eq 0 ] || die "not all is as it should be: ${failed[*]}; see $vm/*-debug.log"
say "all checks passed, and the kernel complained of nothing"
