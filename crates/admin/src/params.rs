//! Query parameters of the HTTP API: each known, each at most once unless it is a list.

use std::time::Duration;

use chancery_proto::admin::v1 as pb;

use crate::AdminError;

/// How long `wait` waits if it is not told.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The parameters that have not been asked for yet.
#[derive(Debug)]
pub(crate) struct Params {
    left: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Params {
    pub(crate) fn new(pairs: Vec<(String, String)>) -> Self {
        Self { left: pairs, known: Vec::new() }
    }

    /// All values of a parameter.
    pub(crate) fn list(&mut self, name: &'static str) -> Vec<String> {
        self.known.push(name);
        let (taken, left) =
            std::mem::take(&mut self.left).into_iter().partition(|(n, _)| n == name);
        self.left = left;
        let taken: Vec<(String, String)> = taken;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// The value of a parameter that may be given once.
    pub(crate) fn one(&mut self, name: &'static str) -> Result<Option<String>, AdminError> {
        let mut values = self.list(name);
        match values.len() {
            0 | 1 => Ok(values.pop()),
            n => Err(AdminError::Parameter(format!("the parameter {name} is given {n} times"))),
        }
    }

    /// Text, empty if it is not given.
    pub(crate) fn text(&mut self, name: &'static str) -> Result<String, AdminError> {
        Ok(self.one(name)?.unwrap_or_default())
    }

    /// `true`, `1` or nothing for yes, `false` or `0` for no.
    pub(crate) fn flag(&mut self, name: &'static str) -> Result<bool, AdminError> {
        match self.one(name)?.as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(value) => Err(AdminError::Parameter(format!(
                "the parameter {name} is {value:?}, it has to be true or false"
            ))),
        }
    }

    /// A whole number.
    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<u64>, AdminError> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        value.parse().map(Some).map_err(|_| {
            let text =
                format!("the parameter {name} is {value:?}, it has to be a whole number from 0");
            AdminError::Parameter(text)
        })
    }

    /// What all writes have in common. `wait` is a time, as in `--wait=10s`; `wait=true` waits for `timeout`, or for
    /// 30 seconds. A number without a unit is refused: it could be a time or a yes.
    pub(crate) fn write_options(&mut self) -> Result<pb::WriteOptions, AdminError> {
        let timeout = self.one("timeout")?;
        let wait = self.one("wait")?;
        let wait_ms = match wait.as_deref() {
            None | Some("false") => None,
            Some("true") => Some(match &timeout {
                Some(timeout) => time("timeout", timeout, "a time")?,
                None => WAIT_DEFAULT,
            }),
            Some(text) => Some(time("wait", text, "true, false or a time")?),
        };
        if timeout.is_some() && wait_ms.is_none() {
            return Err(AdminError::Parameter("the parameter timeout needs wait=true".to_owned()));
        }
        Ok(pb::WriteOptions {
            dry_run: self.flag("dry_run")?,
            if_revision: self.number("if_revision")?,
            wait_ms: wait_ms.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            label: self.text("label")?,
            author: self.text("author")?,
            reason: self.text("reason")?,
            problems_in_response: false,
            request_id: self.text("request_id")?,
            stale: self.flag("stale")?,
        })
    }

    /// Refuses parameters that nobody asked for.
    pub(crate) fn finish(self) -> Result<(), AdminError> {
        let Some((name, _)) = self.left.first() else { return Ok(()) };
        let known = match self.known.as_slice() {
            [] => "there are none".to_owned(),
            known => format!("known are {}", known.join(", ")),
        };
        Err(AdminError::Parameter(format!("unknown parameter {name:?}: {known}")))
    }
}

/// `500ms`, `10s`, `2m`, `1h`.
fn time(name: &str, text: &str, what: &str) -> Result<Duration, AdminError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = factor.and_then(|factor| number.parse::<u64>().ok()?.checked_mul(factor));
    millis.map(Duration::from_millis).ok_or_else(|| {
        AdminError::Parameter(format!(
            "the parameter {name} is {text:?}, it has to be {what} with its unit, such as 500ms, 10s or 2m"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        Params::new(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn a_wait_has_a_time_of_its_own_or_the_timeout_or_the_default() {
        let wait = |pairs: &[(&str, &str)]| params(pairs).write_options().map(|o| o.wait_ms);
        assert_eq!(wait(&[]).unwrap(), None);
        assert_eq!(wait(&[("wait", "false")]).unwrap(), None);
        assert_eq!(wait(&[("wait", "true")]).unwrap(), Some(30_000));
        assert_eq!(wait(&[("wait", "0s")]).unwrap(), Some(0));
        assert_eq!(wait(&[("wait", "250ms")]).unwrap(), Some(250));
        assert_eq!(wait(&[("wait", "true"), ("timeout", "2s")]).unwrap(), Some(2000));
        assert!(wait(&[("timeout", "2s")]).is_err());
        assert!(wait(&[("wait", "true"), ("timeout", "2")]).is_err());
    }

    /// As with `--wait=`, which could not tell a yes from a number of seconds either.
    #[test]
    fn wait_without_a_unit_is_refused() {
        for value in ["", "0", "1", "2", "soon"] {
            let error = params(&[("wait", value)]).write_options().unwrap_err().to_string();
            let rule = "it has to be true, false or a time with its unit, such as 500ms, 10s or 2m";
            assert_eq!(error, format!("the parameter wait is {value:?}, {rule}"));
        }
    }

    #[test]
    fn a_parameter_that_is_wrong_is_told() {
        let error = params(&[("dry_run", "maybe")]).flag("dry_run").unwrap_err().to_string();
        assert_eq!(error, "the parameter dry_run is \"maybe\", it has to be true or false");
        let error = params(&[("n", "-1")]).number("n").unwrap_err().to_string();
        assert_eq!(error, "the parameter n is \"-1\", it has to be a whole number from 0");
        let error = params(&[("n", "1"), ("n", "2")]).number("n").unwrap_err().to_string();
        assert_eq!(error, "the parameter n is given 2 times");
        let mut two = params(&[("scope", "a"), ("prun", "true")]);
        two.text("scope").unwrap();
        two.flag("prune").unwrap();
        let error = two.finish().unwrap_err().to_string();
        assert_eq!(error, "unknown parameter \"prun\": known are scope, prune");
    }
}
