//! A disk of a few megabytes that a test can fill and detach: a tmpfs in a mount namespace of its own, in which the binary
//! under test starts. It disappears with the test and is invisible to other processes.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::process::Process;

pub struct Disk {
    /// Keeps the namespace while it waits on its standard input.
    holder: Process,
    mount_point: PathBuf,
    own_user: bool,
}

impl Disk {
    /// Mounts `megabytes` at the folder `name` within `folder`.
    pub fn mount(folder: &Path, name: &str, megabytes: u32) -> Result<Disk> {
        let mount_point = folder.join(name);
        std::fs::create_dir_all(&mount_point)?;
        // A user who may not mount becomes root of a namespace in which mounting is allowed.
        let own_user = std::fs::metadata("/proc/self")?.uid() != 0;
        let mut command = Command::new("unshare");
        command.arg("--mount").args(own_user.then_some("--map-root-user"));
        command
            .args([
                "sh",
                "-ec",
                "mount -t tmpfs -o size=$0 thalweg \"$1\"; echo mounted; exec cat",
            ])
            .arg(format!("{megabytes}m"))
            .arg(&mount_point);
        let mut holder = Process::start("disk", folder, &mut command)?;
        holder
            .wait_for_line("mounted")
            .context("the test needs a mount namespace, as root or by unprivileged user namespaces")?;
        Ok(Disk {
            holder,
            mount_point,
            own_user,
        })
    }

    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The files on the disk, seen from outside.
    pub fn path(&self) -> PathBuf {
        let inside = self.mount_point.strip_prefix("/").unwrap_or(&self.mount_point);
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(inside)
    }

    /// The command line that runs a program in the namespace with the disk.
    pub fn enter(&self, folder: &Path, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args(
                self.own_user
                    .then(|| format!("--user=/proc/{}/ns/user", self.holder.id())),
            )
            // Entering a namespace leaves the working directory behind.
            .args(["sh", "-c", "cd \"$0\" && exec \"$@\""])
            .arg(folder)
            .arg(program);
        command
    }

    pub fn set_writable(&self, writable: bool) -> Result<()> {
        let how = if writable { "remount,rw" } else { "remount,ro" };
        let mut command = self.enter(Path::new("/"), Path::new("mount"));
        let status = command.args(["-o", how]).arg(&self.mount_point).status()?;
        ensure!(status.success(), "mount -o {how}: {status}");
        Ok(())
    }

    /// Fills the remaining space.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::options().append(true).create(true).open(self.ballast())?;
        for block in [64 * 1024, 4096, 1] {
            let zeros = vec![0; block];
            while file.write_all(&zeros).is_ok() {}
        }
        Ok(())
    }

    pub fn free(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.ballast())?)
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}
