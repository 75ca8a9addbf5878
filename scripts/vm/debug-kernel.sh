#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# debug-kernel.sh - tries the kernel module on a kernel that looks for mistakes itself: KASAN, lockdep, kmemleak and others
# that Debian's kernels do not have (debug-kernel.config; docs/internals/module.md).
#
#   scripts/vm/debug-kernel.sh [--build|--mistakes] [WORD...]
#
# WORDs are those of `erb lab vm debug`, by which guests are run: checks (kmod, which is what is tried if nothing is said; sink),
# --only, --cycles, --seconds. --build: the kernel is built, and no guest is started. --mistakes: mistakes are made in the
# module, one at a time, and the kernel has to complain of each; passes if it does.
#
# Debian's linux-source of the series 6.12 is downloaded (150 MB) and built below target/vm: 3 GB, and half an hour with
# two processors; once for each source, configuration and compiler. Installed is what that needs, if it is missing.
#
#   ERB_JOBS=N           processes of the build; one for each processor if nothing is said
#   ERB_PROFILE=dev      of Cargo's build of what is tried; release if nothing is said
#
# Exit code 0: all checks passed, and the kernel has complained of nothing. What it said is in target/vm/runs.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh

series=6.12
config=scripts/vm/debug-kernel.config

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

# debug_build SOURCE FOLDER: the folder is then what erb lab vm makes of a package; headers are those of the build.
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

# debug_mistake NAME COMPLAINT FILE FIND REPLACE: the kernel complains so of the module with this mistake.
debug_mistake() {
	local folder=$vm/mistake text
	rm -rf "$folder"
	mkdir -p "$folder"
	cp -r kmod bpf "$folder/"
	text=$(<"kmod/$3")
	[ "${text/"$4"/"$5"}" != "$text" ] || die "$1: kmod/$3 has no such text: $4"
	echo "${text/"$4"/"$5"}" >"$folder/kmod/$3"
	# Of the sources around the current folder.
	if (cd "$folder" && "$erb" lab vm debug kmod --only log) >"$folder/said" 2>&1 || ! grep -q "$2" "$folder/said"; then
		say "$1: NOT SEEN, see $folder/said"
		return 1
	fi
	say "$1: $(grep -m 1 -o "$2.*" "$folder/said")"
}

debug_mistakes() {
	local unseen=0
	debug_mistake leak 'unreferenced object' main.c '	vfree(sink->batch);' '' || unseen=1
	debug_mistake sleep 'BUG: sleeping function called' kfuncs.c '	int refused = sink_push(' \
		'	int refused = mutex_lock_interruptible(&erb_io.lock) ?: (mutex_unlock(&erb_io.lock), 0) ?: sink_push(' || unseen=1
	debug_mistake order 'possible circular locking' main.c '	failed = memory_make();' \
		'	mutex_lock(&erb_io.lock);
	mutex_lock(&erb_io.sync_mutex);
	mutex_unlock(&erb_io.sync_mutex);
	mutex_unlock(&erb_io.lock);
	failed = memory_make();' || unseen=1
	debug_mistake beyond 'BUG: KASAN' threads.c 'if (sink_written(&io->sink))' \
		'if (READ_ONCE(io->sink.batch[io->sink.batch_size]) | sink_written(&io->sink))' || unseen=1
	return $unseen
}

setup_root
way=run
case ${1-} in
--build | --mistakes)
	way=${1#--}
	shift
	;;
esac
vm_packages flex bison bc pahole libelf-dev
vm_suites "${SUITES[@]}"
debug_kernel
[ $way != build ] || exit 0
unset APT_CONFIG
setup_rust run
profile=${ERB_PROFILE:-release}
cargo build --profile "$profile" --locked --package erb --package erb-tools --package erb-kmod-vm
erb=$(readlink -f "${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/erb")
if [ $way = mistakes ]; then
	debug_mistakes
	exit
fi
[ $# -gt 0 ] || set -- kmod
exec "$erb" lab vm debug "$@"
