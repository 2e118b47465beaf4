//! A private Postgres for trying out: found on the machine, initialised once, reachable from this machine only.
//!
//! Relies on server binaries that somebody installed, says how where there are none; and on the lock of its home: a
//! server that runs on its data was left by a process that is gone. Never: runs as root (Postgres refuses), or touches
//! a server that is not its own.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

/// The user and group that run the server when we are root: `nobody`.
const NOBODY: u32 = 65_534;

/// A running private server; stopped when dropped.
pub struct PrivatePostgres {
    place: Place,
    url: String,
}

/// Where a server's programs and data are, whether or not it runs.
struct Place {
    bin: PathBuf,
    data: PathBuf,
    as_nobody: bool,
}

impl PrivatePostgres {
    /// Finds the binaries, initialises `home/pg` if need be, stops what an earlier process left running there, starts
    /// the server on a free port. Blocks for seconds. The caller holds the lock of `home`.
    ///
    /// # Errors
    /// Without server binaries, the line to run; else what initdb or pg_ctl said.
    pub fn start(home: &Path) -> anyhow::Result<PrivatePostgres> {
        let bin = find_binaries()?;
        let as_nobody = fs::metadata("/proc/self")
            .is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
        let data = data_directory(home, as_nobody)?;
        let password = password(&data)?;
        let place = Place {
            bin,
            data,
            as_nobody,
        };
        if !place.cluster().exists() {
            place.initialise()?;
        }
        if place.is_served() {
            place.stop()?;
        }
        let port = free_port()?;
        if let Err(error) = place.launch(port) {
            // It may only have been too slow.
            if place.is_served() {
                place.stop()?;
            }
            return Err(error);
        }
        Ok(PrivatePostgres {
            place,
            url: format!("postgres://lapse:{password}@127.0.0.1:{port}/postgres"),
        })
    }

    /// Where it is, password included.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its major version and the like, for people.
    pub fn version(&self) -> String {
        let asked = Command::new(self.place.bin.join("postgres"))
            .arg("--version")
            .output();
        asked
            .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
            .unwrap_or_default()
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if let Err(error) = self.place.stop() {
            tracing::warn!(%error, "the private postgres is left running");
        }
    }
}

impl Place {
    fn cluster(&self) -> PathBuf {
        self.data.join("cluster")
    }

    /// Under another name until it is whole: a cluster that was cut short can't be told from a good one.
    fn initialise(&self) -> anyhow::Result<()> {
        let unfinished = self
            .data
            .join(format!("unfinished-{}", uuid::Uuid::now_v7().simple()));
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(&unfinished).args([
            "-U",
            "lapse",
            "-E",
            "UTF8",
            "--locale=C",
            "-A",
            "scram-sha-256",
        ]);
        initdb
            .arg("--pwfile")
            .arg(self.data.join("password"))
            .arg("--no-sync");
        run(initdb, "initialise the private postgres")?;
        fs::rename(&unfinished, self.cluster()).context("initialise the private postgres")
    }

    fn launch(&self, port: u16) -> anyhow::Result<()> {
        let options = format!(
            "-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        );
        let mut start = self.command("pg_ctl");
        start
            .arg("-D")
            .arg(self.cluster())
            .arg("-l")
            .arg(self.data.join("log"))
            .args(["-w", "-t", "30", "-o", &options]);
        start.arg("start");
        run(start, "start the private postgres")
            .with_context(|| format!("see {}", self.data.join("log").display()))
    }

    /// Whether a live server uses this cluster. Its process id alone does not tell: another program may have it by now.
    fn is_served(&self) -> bool {
        let written = fs::read_to_string(self.cluster().join("postmaster.pid"));
        let pid = written
            .ok()
            .and_then(|text| text.lines().next()?.trim().parse::<u32>().ok());
        let data = format!("-D {} ", self.cluster().display());
        pid.is_some_and(|pid| command_line(pid).contains(&data))
    }

    /// Cuts its connections; what hangs is stopped the hard way, which Postgres survives as it does a crash.
    fn stop(&self) -> anyhow::Result<()> {
        self.stop_as("fast").or_else(|error| {
            tracing::warn!(%error, "the private postgres is stopped at once");
            self.stop_as("immediate")
        })
    }

    fn stop_as(&self, mode: &str) -> anyhow::Result<()> {
        let mut stop = self.command("pg_ctl");
        stop.arg("-D")
            .arg(self.cluster())
            .args(["-m", mode, "-w", "-t", "10", "stop"]);
        run(stop, "stop the private postgres")
    }

    /// Out of reach of the terminal's Ctrl-C, which is for us: we stop it in our own time.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command
            .current_dir(&self.data)
            .stdin(Stdio::null())
            .process_group(0);
        if self.as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

/// A process's arguments, separated by spaces; empty if there is no such process. Where there is no `/proc`, `ps` knows.
fn command_line(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).or_else(|_| {
        Command::new("ps")
            .args(["-ww", "-o", "args=", "-p", &pid.to_string()])
            .output()
            .map(|out| out.stdout)
    });
    String::from_utf8_lossy(&arguments.unwrap_or_default()).replace('\0', " ")
}

/// `LAPSE_PG_BIN`, the PATH, then Debian's place, newest first.
fn find_binaries() -> anyhow::Result<PathBuf> {
    let given = std::env::var_os("LAPSE_PG_BIN").map(PathBuf::from);
    let on_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default();
    let mut installed: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path().join("bin")))
        .collect();
    installed.sort_by_key(|bin| std::cmp::Reverse(major_version(bin)));
    given
        .into_iter()
        .chain(on_path)
        .chain(installed)
        .find(|bin| bin.join("initdb").is_file() && bin.join("pg_ctl").is_file())
        .context("no PostgreSQL server found; run: scripts/postgres get, or: apt-get install postgresql, or set LAPSE_PG_BIN")
}

fn major_version(bin: &Path) -> u32 {
    let version = bin
        .parent()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str());
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// `home/pg`, or a directory below the system's temporary one where `nobody` could not reach it. Its name ends with a
/// digest: two homes never share one, as each has a lock of its own.
fn data_directory(home: &Path, as_nobody: bool) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(home).with_context(|| format!("make {}", home.display()))?;
    let home = home
        .canonicalize()
        .with_context(|| format!("find {}", home.display()))?;
    let reachable = |path: &Path| {
        path.ancestors()
            .skip(1)
            .all(|part| fs::metadata(part).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0))
    };
    let place = home.join("pg");
    let data = if !as_nobody || reachable(&place) {
        place
    } else {
        let name: String = place
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let digest = hex::encode(&Sha256::digest(place.as_os_str().as_encoded_bytes())[..4]);
        std::env::temp_dir().join(format!("lapse-dev{name}-{digest}"))
    };
    fs::create_dir_all(&data).with_context(|| format!("make {}", data.display()))?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
    if as_nobody {
        chown(&data, Some(NOBODY), Some(NOBODY))
            .with_context(|| format!("give {} to nobody", data.display()))?;
    }
    Ok(data)
}

/// Made once, readable by the server's user only.
fn password(data: &Path) -> anyhow::Result<String> {
    let file = data.join("password");
    if let Ok(password) = fs::read_to_string(&file) {
        return Ok(password.trim().to_owned());
    }
    let mut random = [0_u8; 24];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut random)
        .context("read /dev/urandom")?;
    let password = hex::encode(random);
    fs::write(&file, &password).with_context(|| format!("write {}", file.display()))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let owner = fs::metadata(data)?;
    chown(
        &file,
        Some(std::os::unix::fs::MetadataExt::uid(&owner)),
        None,
    )?;
    Ok(password)
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))
        .context("find a free port")?
        .local_addr()?
        .port())
}

/// Output goes to a file, not a pipe: the server inherits it and would keep a pipe open.
fn run(mut command: Command, what: &str) -> anyhow::Result<()> {
    let output = tempfile_in_memory()?;
    command
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?);
    let status = command.status().with_context(|| what.to_owned())?;
    if status.success() {
        return Ok(());
    }
    bail!("{what}: {}", read_back(output)?.trim())
}

fn tempfile_in_memory() -> anyhow::Result<fs::File> {
    let path = std::env::temp_dir().join(format!(
        "lapse-{}-{}",
        std::process::id(),
        uuid::Uuid::now_v7().simple()
    ));
    let file = fs::File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn read_back(mut file: fs::File) -> anyhow::Result<String> {
    use std::io::{Read, Seek};
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}
