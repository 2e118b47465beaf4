//! Authorities and certificates of the tests' own, right and wrong ones.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// An authority, in a directory of its own that goes with it.
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, PEM.
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Authority {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("authority-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&directory).expect("a directory can be made");
        let mut params = CertificateParams::new(Vec::new()).expect("no names, none wrong");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let name = format!("test authority {}", uuid::Uuid::now_v7());
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("it signs itself");
        std::fs::write(directory.join("ca.pem"), certificate.pem()).expect("a file can be written");
        Authority {
            directory,
            issuer: Issuer::new(params, key),
        }
    }

    /// For a host name or an address.
    pub fn certify(&self, host: &str) -> Certified {
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a legal name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("it signs");
        Certified {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// The file with its certificate.
    pub fn file(&self) -> String {
        self.path("ca.pem")
    }

    /// A file beside it.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.directory.join(name);
        std::fs::write(path, text).expect("a file can be written");
        self.path(name)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
