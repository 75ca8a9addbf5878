# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `power` of `erb lab vm`, in the guest until its power is cut: a network, drives, and a program that does what the
# host says.
for module in virtio_net virtio_blk virtio_scsi sd_mod ext4; do
	modprobe -q "$module" || echo "no module $module"
done
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
mkdir -p /run/file
"$work/erb-node-vm" inside "$work/erb"
busybox poweroff -f
