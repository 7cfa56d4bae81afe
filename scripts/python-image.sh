#!/usr/bin/env bash
# Builds the test image .parts/image/python.tar from Debian's Python and a shell, without an image registry.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.parts/image
mkdir -p "$folder"
exec 9> "$folder/lock"
flock 9
if [ -e "$folder/python.tar" ]; then exit; fi
work=$PWD/$folder/work
rm -rf "$work"
mkdir -p "$work/packages" "$work/root"

# Only the dependencies that Python needs at run time; the others are needed only to install packages.
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
mv python.part python.tar  # last, so that an interrupted build is repeated
