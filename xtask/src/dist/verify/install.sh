#!/bin/sh
# Installs the package on a copy of this machine that ends with this script, starts the command of its unit as the user of
# the service, and removes the package again. The caller gives it namespaces of its own: unshare --mount --pid --fork.
#
#   install.sh FOLDER PACKAGE SYMBOLS    an empty folder, the .deb, and the .deb with its symbols
#
# It prints a line for each step that went well, and before the service is stopped the service's lock file; it then waits
# for a line from its caller.
set -eu

if [ "$1" != inside ]; then
    folder=$1 package=$2 symbols=$3 root=$1/root
    # Changes go to memory: a folder of an overlay cannot hold the changes of another one.
    mount -t tmpfs -o mode=0755 tmpfs "$folder"
    mkdir "$folder/upper" "$folder/work" "$root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    cp "$package" "$root/package.deb"
    cp "$symbols" "$root/symbols.deb"
    cp "$0" "$root/install.sh"
    exec chroot "$root" /bin/sh /install.sh inside
fi

fail() {
    echo "$1" >&2
    exit 1
}

unit=/usr/lib/systemd/system/thalweg.service
config=/etc/thalweg/thalweg.yaml
data=/var/lib/thalweg

dpkg --install /package.deb /symbols.deb >/dpkg.log 2>&1 || { cat /dpkg.log >&2; exit 1; }
[ "$(stat -c '%U:%G %a' /etc/thalweg)" = "root:thalweg 750" ] || fail "/etc/thalweg is not that of root and the group thalweg"
[ "$(getent passwd thalweg | cut -d: -f6,7)" = "$data:/usr/sbin/nologin" ] || fail "the user thalweg can log in"
echo "ok dpkg --install: the user, the folder of the configuration"

# What systemd does of the unit: its folder, its user, no privileges, its umask.
install -d -o thalweg -g thalweg -m 700 "$data"
cd "$data"
umask 027
command=$(sed -n 's/^ExecStart=//p' "$unit")
# Other programs on this machine may use the ports of the configuration. One prepared log file is enough.
setpriv --reuid=thalweg --regid=thalweg --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all --reset-env \
    $command -s http.address=127.0.0.1:0 -s ingest.otlp.grpc.address=127.0.0.1:0 -s ingest.otlp.http.address=127.0.0.1:0 \
    -s log.commit.spare=1 -s http.debug_endpoints=true >/service.log 2>&1 &
service=$!
looks=0
until grep -qs '"http"' LOCK; do
    looks=$((looks + 1))
    if [ $looks -gt 600 ] || ! kill -0 $service 2>/dev/null; then
        cat /service.log >&2
        fail "the service does not listen"
    fi
    sleep 0.1
done
[ "$(stat -c %U LOCK)" = thalweg ] || fail "the service does not run as thalweg"
echo "lock $(tr -d '\n' <LOCK)"
read -r _
kill -TERM $service
wait $service || { cat /service.log >&2; fail "after SIGTERM the service ended with an error"; }
echo "ok the service of the unit, as its user: SIGTERM, exit code 0"

dpkg --remove thalweg-dbgsym thalweg >/dpkg.log 2>&1 || { cat /dpkg.log >&2; exit 1; }
[ ! -e /usr/bin/thalweg ] || fail "dpkg --remove leaves the program"
[ -e $config ] || fail "dpkg --remove takes the configuration"
dpkg --purge thalweg >/dpkg.log 2>&1 || { cat /dpkg.log >&2; exit 1; }
[ ! -e $config ] || fail "dpkg --purge leaves the configuration"
[ -e "$data/LOCK" ] && [ -n "$(getent passwd thalweg)" ] || fail "dpkg --purge takes the data or their user"
grep -q "the data in $data and the user thalweg are kept" /dpkg.log || fail "dpkg --purge does not say what it keeps"
echo "ok dpkg --remove keeps the configuration, dpkg --purge the data"
