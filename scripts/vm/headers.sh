# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# headers.sh - what a module for another kernel is built with. Sourced behind vm.sh; defines functions and does
# nothing by itself.
#
# Debian keeps images longer than headers, and builds a kernel with the compiler of its own release: the suffix
# +deb12 says which. Headers bring programs that are linked for that release, so an older one cannot run them.

# headers_newest SERIES: the newest kernel that has image and headers, and that this machine can build for.
headers_newest() {
	local host series=${1/./\\.} version
	[ "$1" != newest ] || series='[0-9]+\.[0-9]+'
	host=$(sed -n 's/^VERSION_ID="\{0,1\}\([0-9]*\).*/\1/p' /etc/os-release)
	apt-cache pkgnames linux-headers- | sed -nE "s/^linux-headers-($series\.[0-9.]+\+deb([0-9]+)[0-9.]*-amd64)\$/\2 \1/p" |
		while read -r release version; do
			[ "$release" -gt "$host" ] || echo "$version"
		done | sort -V | while read -r version; do
		[ -z "$(apt-cache pkgnames "linux-image-$version" | grep -x "linux-image-$version")" ] || echo "linux-image-$version"
	done | tail -n 1
}

# headers_of IMAGE: unpacks the headers of that kernel under target/vm, and says the folder to build in.
headers_of() {
	local version=${1#linux-image-} part root
	root=$vm/headers-$version
	if [ ! -e "$root/done" ]; then
		say "unpacking the headers of $version"
		rm -rf "$root"
		mkdir -p "$root/deb"
		for part in "linux-headers-$version" "linux-headers-${version%-amd64}-common" "linux-kbuild-${version%-amd64}"; do
			(cd "$root/deb" && apt-get -qq -o APT::Sandbox::User=root download "$part") >&2 ||
				die "apt cannot download $part"
		done
		for part in "$root"/deb/*.deb; do
			dpkg -x "$part" "$root"
		done
		rm -r "$root/deb"
		# They name each other by where they would be installed.
		sed -i "s|/usr/src/|$root/usr/src/|" "$root/usr/src/linux-headers-$version/Makefile"
		touch "$root/done"
	fi
	echo "$root/usr/src/linux-headers-$version"
}

# kmod_build IMAGE: the module, from what DKMS gets, in target/vm/kmod. A warning of W=1 is an error.
kmod_build() {
	local headers
	headers=$(headers_of "$1") || exit 1
	rm -rf "$vm/kmod"
	make -s -C kmod dkms TO="$vm/kmod"
	make -C "$vm/kmod" KDIR="$headers" >"$vm/kmod/said" 2>&1 || {
		cat "$vm/kmod/said"
		die "the module does not build for $1"
	}
	! grep -E 'warning|Skipping BTF' "$vm/kmod/said" || die "the build for $1 warns"
	say "the module is built for $1"
}
