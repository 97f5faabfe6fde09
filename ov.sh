set -e
mount --make-rprivate /
mkdir -p /tmp/dist-try/ov && mount -t tmpfs tmpfs /tmp/dist-try/ov && cd /tmp/dist-try/ov && mkdir u w m
mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w m
mount -t proc proc m/proc; mount --rbind /dev m/dev; mount -t tmpfs tmpfs m/run
mkdir m/deb; cp /tmp/dist-try/t/1/*.deb m/deb/x.deb
chroot m sh -xc '
dpkg -i /deb/x.deb; echo "install rc $?"
id thalweg; getent passwd thalweg; ls -ld /etc/thalweg /etc/thalweg/thalweg.yaml; ls /etc/systemd/system/multi-user.target.wants | grep thal
thalweg --version; dpkg -s thalweg | head -12; zcat /usr/share/man/man1/thalweg-run.1.gz | head -2
echo "# mine" >> /etc/thalweg/thalweg.yaml
dpkg -i /deb/x.deb; echo "upgrade rc $?"; tail -1 /etc/thalweg/thalweg.yaml
mkdir -p /var/lib/thalweg/data
dpkg -r thalweg; echo "remove rc $?"; ls -la /etc/thalweg
dpkg -P thalweg; echo "purge rc $?"; ls -ld /etc/thalweg /var/lib/thalweg; ls /etc/systemd/system/multi-user.target.wants | grep thal; id thalweg
find /etc /var/lib /usr -newer /deb/x.deb -name "*thalweg*" 2>/dev/null
'
