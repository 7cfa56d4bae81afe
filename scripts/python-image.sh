#!/usr/bin/env bash
# Makes the tests' image, .parts/image/python.tar: Debian's own Python and a shell, from no registry of images.
set -euo pipefail
cd "$(dirname "$0")/.."
place=.parts/image
mkdir -p "$place"
exec 9> "$place/lock"
flock 9
if [ -e "$place/python.tar" ]; then exit; fi
work=$PWD/$place/work
rm -rf "$work"
mkdir -p "$work/packages" "$work/root"

# What Python stands on. The rest of what the packages ask for is there to install them, which nobody does.
packages=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    python3-minimal libpython3-stdlib | grep -E '^(lib|python3|zlib1g)' | grep -vE '^(libperl|libgdbm|libpython3-stdlib$|python3-minimal$)' | sort -u)
(cd "$work/packages" && apt-get download -qq -o APT::Sandbox::User=root busybox-static $packages)

cd "$work/root"
mkdir -p usr/{bin,sbin,lib,lib64} etc tmp proc sys dev root run var/tmp
for name in bin sbin lib lib64; do ln -s usr/$name $name; done
for package in ../packages/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink --exclude='./usr/share/*' --exclude='*/gconv/*' --exclude='*/lib2to3/*'
done
chroot . /bin/busybox --install -s /usr/bin
ln -sf "$(basename usr/bin/python3.*[0-9])" usr/bin/python3
ln -sf python3 usr/bin/python
echo 'root:x:0:0:root:/root:/bin/sh' > etc/passwd
echo 'root:x:0:' > etc/group
chmod 1777 tmp var/tmp
tar -cf ../../python.part .
cd ../../
rm -rf work
mv python.part python.tar  # last: what broke off is made again
