//! The checks of files on this machine.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use chancery_tls::{ClientTls, ClientTlsFiles, Validity, expiry_warning_seconds};

use super::check::Check;
use crate::{
    contexts::Contexts,
    remote::{credential::TokenSource, settings::ConnectionFlags},
    time::now,
};

/// The permissions that a secret file must not have: writing by its group, and any access by others.
const MODE_EXCESS: u32 = 0o027;
const DAY: i64 = 86_400;

/// Checks the contexts file and the chosen context.
pub(super) fn contexts(flags: &ConnectionFlags) -> Check {
    const NAME: &str = "contexts";
    let checked = Contexts::load().and_then(|contexts| {
        let chosen = flags.chosen(&contexts)?;
        if let Some((name, chosen_by)) = &chosen {
            contexts.get(name, chosen_by)?;
        }
        Ok((contexts.path, chosen))
    });
    match checked {
        Err(failure) => {
            Check::failed(NAME, failure.lines.join("; "), "correct the contexts file or the choice")
        }
        Ok((_, Some((name, chosen_by)))) => {
            Check::ok(NAME, format!("context {name} ({chosen_by})"))
        }
        Ok((Some(path), None)) if path.exists() => {
            Check::ok(NAME, format!("{} is readable; no context is in use", path.display()))
        }
        Ok((_, None)) => Check::ok(NAME, "there is no contexts file"),
    }
}

/// Checks the token.
pub(super) fn token(source: Option<&TokenSource>) -> Check {
    const NAME: &str = "token";
    let Some(source) = source else { return Check::ok(NAME, "no token is configured") };
    if let Err(error) = source.header() {
        return Check::failed(NAME, error, "get a new token");
    }
    match source {
        TokenSource::File(path) if is_open(path) => Check::warning(
            NAME,
            format!("other users can read or change {}", path.display()),
            "set its mode to 600 or 640",
        ),
        source => Check::ok(NAME, format!("{source} is usable")),
    }
}

/// Checks the certificate of the caller, its key, and the CAs of servers.
pub(super) fn certificate(files: &ClientTlsFiles) -> Check {
    const NAME: &str = "certificate";
    let Some((cert, key)) = &files.cert_and_key else {
        // Without files, the system's CAs are read when an https:// address needs them.
        return match files.ca.is_some().then(|| ClientTls::new(files)) {
            Some(Err(error)) => Check::failed(NAME, error.to_string(), "correct --ca-cert"),
            Some(Ok(_)) => Check::ok(NAME, "the CA file is usable; no certificate is configured"),
            None => Check::ok(NAME, "no certificate is configured"),
        };
    };
    if let Err(error) = ClientTls::new(files) {
        return Check::failed(NAME, error.to_string(), "correct --ca-cert, --cert and --cert-key");
    }
    let remaining = match Validity::of_file(cert) {
        Ok(validity) => of_validity(NAME, &cert.display().to_string(), validity, unix_time()),
        Err(error) => return Check::failed(NAME, error.to_string(), "correct --cert"),
    };
    if remaining.is_ok() && is_open(key) {
        Check::warning(
            NAME,
            format!("other users can read or change the private key {}", key.display()),
            "set its mode to 600 or 640",
        )
    } else {
        remaining
    }
}

/// Checks the time that remains until a certificate expires.
pub(super) fn of_validity(name: &'static str, whose: &str, validity: Validity, now: i64) -> Check {
    let Validity { not_before, not_after } = validity;
    let left = not_after.saturating_sub(now);
    if now < not_before {
        let detail = format!("{whose} is not valid yet: it begins in {}", span(not_before - now));
        return Check::failed(name, detail, "compare the clocks");
    }
    if left < 0 {
        let detail = format!("{whose} expired {} ago", span(-left));
        return Check::failed(name, detail, "replace the certificate");
    }
    let detail = format!("{whose} expires in {}", span(left));
    if left < expiry_warning_seconds(validity.lifetime()) {
        Check::warning(name, detail, "replace the certificate")
    } else {
        Check::ok(name, detail)
    }
}

pub(super) fn unix_time() -> i64 {
    i64::try_from(now() / 1000).unwrap_or(i64::MAX)
}

pub(super) fn span(seconds: i64) -> String {
    match seconds {
        ..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / DAY),
    }
}

fn is_open(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.mode() & MODE_EXCESS != 0)
}

#[cfg(test)]
mod tests {
    use super::{super::check::Outcome, *};

    #[test]
    fn certificate_is_reported_before_it_expires() {
        let year = Validity { not_before: 0, not_after: 365 * DAY };
        let hour = Validity { not_before: 0, not_after: 3600 };
        for (validity, now, outcome, detail) in [
            (year, -3600, Outcome::Failed, "c is not valid yet: it begins in 60 minutes"),
            (year, 0, Outcome::Ok, "c expires in 365 days"),
            (year, 351 * DAY, Outcome::Ok, "c expires in 14 days"),
            (year, 352 * DAY, Outcome::Warning, "c expires in 13 days"),
            (year, 366 * DAY, Outcome::Failed, "c expired 24 hours ago"),
            (hour, 0, Outcome::Ok, "c expires in 60 minutes"),
            (hour, 2600, Outcome::Ok, "c expires in 16 minutes"),
            (hour, 3000, Outcome::Warning, "c expires in 10 minutes"),
        ] {
            let check = of_validity("x", "c", validity, now);
            assert_eq!((check.outcome, check.detail.as_str()), (outcome, detail));
        }
    }
}
