//! The commands `keys status`, `keys rotate`, `keys reseal`, `keys rewrap` and `keys retire`.

use std::time::{Duration, Instant};

use chancery_admin_proto::v1::{self as pb, keys_service_client::KeysServiceClient};
use clap::Subcommand;

use super::{client::refusal, connector::Channel, read::Read};
use crate::{answer::Answer, failure::Failure, help::examples, table::Table, time::timestamp};

/// The number of calls per second that reseal.
const CALLS_PER_SECOND: u32 = 2;

/// The subcommands of `keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Show the keys that seal secrets, and the number of resources of each key
    ///
    /// RESOURCES is the number of resources that a data key seals. ENCRYPTED BY names its key-encryption key. HERE shows
    /// whether the contacted replica can use the data key.
    Status {
        #[command(flatten)]
        read: Read,
    },
    /// Add a data key, which seals new secrets
    ///
    /// Creates the keys of the cluster if it has none. `keys reseal` then seals the existing secrets with the new key.
    #[command(after_help = examples(&["keys rotate"]))]
    Rotate,
    /// Seal all secrets with the newest data key, at a limited rate
    ///
    /// Also seals secrets that are stored unencrypted. Versions and revisions stay the same, and clients receive
    /// nothing. The command can be interrupted and repeated.
    #[command(after_help = examples(&["keys reseal", "keys reseal --rate 50"]))]
    Reseal {
        /// Seal at most N resources per second; the maximum is 2000
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
        rate: u32,
    },
    /// Encrypt all keys with the current key-encryption key
    ///
    /// Use this command after you add a new key as the first line of `secrets.key_file` on all replicas, or change the
    /// source of keys. `secrets.kms_socket` encrypts, or else `secrets.credential`, or else `secrets.key_file`.
    #[command(after_help = examples(&["keys rewrap"]))]
    Rewrap,
    /// Delete a data key that seals nothing
    #[command(after_help = examples(&["keys retire 1"]))]
    Retire {
        /// Number of the data key, as `keys status` shows it
        id: u32,
    },
}

/// Runs a subcommand.
pub(super) async fn run(
    command: Keys,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let mut client = KeysServiceClient::new(channel);
    let author = std::env::var("USER").unwrap_or_default();
    let options = Some(pb::WriteOptions { author, ..pb::WriteOptions::default() });
    let (done, text) = match command {
        Keys::Status { read } => return status(client, read, answer).await,
        Keys::Reseal { rate } => return reseal(client, rate, answer).await,
        Keys::Rotate => (
            client.rotate_keys(pb::RotateKeysRequest { options }).await,
            "added a data key".to_owned(),
        ),
        Keys::Rewrap => (
            client.rewrap_keys(pb::RewrapKeysRequest { options }).await,
            "all keys are encrypted with the first configured key".to_owned(),
        ),
        Keys::Retire { id } => (
            client.retire_key(pb::RetireKeyRequest { id, options }).await,
            format!("retired data key {id}"),
        ),
    };
    let response = done.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| writeln!(out, "revision {}: {text}", response.revision))
}

async fn status(
    mut client: KeysServiceClient<Channel>,
    read: Read,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let response = client.keys_status(pb::KeysStatusRequest { stale: read.stale }).await;
    let status = response.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&status, |out| {
        let source = if status.has_source { "configured" } else { "none configured" };
        writeln!(out, "source of keys on this replica: {source}")?;
        if !status.failure.is_empty() {
            writeln!(out, "failure: {}", status.failure)?;
        }
        writeln!(out, "sealed resources: {}", status.sealed)?;
        writeln!(out, "sealed resources that this replica cannot open: {}", status.unopened)?;
        writeln!(out, "secrets that are not sealed: {}", status.plain_secrets)?;
        if status.keys.is_empty() {
            return writeln!(out, "no data keys");
        }
        let here = |unwrapped| if unwrapped { "available" } else { "missing" }.to_owned();
        let mut table = Table::new(["KEY", "CREATED", "RESOURCES", "ENCRYPTED BY", "HERE"]);
        for key in &status.keys {
            table.row([
                key.id.to_string(),
                timestamp(key.created_ms),
                key.resources.to_string(),
                key.kek.clone(),
                here(key.unwrapped),
            ]);
        }
        let (kek, unwrapped) = (status.digest_kek.clone(), status.digest_unwrapped);
        table.row(["digests".to_owned(), "-".to_owned(), "-".to_owned(), kek, here(unwrapped)]);
        table.write(out, "")
    })
}

/// Passes over all resources, at most `rate` per second.
async fn reseal(
    mut client: KeysServiceClient<Channel>,
    rate: u32,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let rate = rate.max(1);
    let resources_max = (rate / CALLS_PER_SECOND).max(1);
    let (mut from, mut done) = (Default::default(), pb::ResealSecretsResponse::default());
    loop {
        let start = Instant::now();
        let request = pb::ResealSecretsRequest { from, resources_max };
        let response = client.reseal_secrets(request).await.map_err(|status| refusal(&status))?;
        let pb::ResealSecretsResponse { resealed, next, unopened } = response.into_inner();
        done.resealed += resealed;
        done.unopened += unopened;
        if next.is_empty() {
            break;
        }
        from = next;
        // The command pauses only for resources that the server has sealed again.
        let pause = Duration::from_secs_f64(resealed as f64 / f64::from(rate));
        tokio::time::sleep(pause.saturating_sub(start.elapsed())).await;
    }
    answer.show(&done, |out| {
        writeln!(out, "resealed {} resources", done.resealed)?;
        match done.unopened {
            0 => Ok(()),
            n => writeln!(out, "{n} resources stay as they are: this replica cannot open them"),
        }
    })
}
