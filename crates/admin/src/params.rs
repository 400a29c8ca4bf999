//! Query parameters of the HTTP API. Each parameter must be known, and only lists may be repeated.

use std::{collections::BTreeMap, time::Duration};

use axum::extract::RawPathParams;
use chancery_admin_proto::v1 as pb;

use crate::AdminError;

/// The default time of `wait`.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The parameters that have not been read.
#[derive(Debug)]
pub(crate) struct Params {
    left: Vec<(String, String)>,
    known: Vec<&'static str>,
    /// A required parameter that is missing.
    missing: Option<&'static str>,
    path: Vec<(String, String)>,
}

impl Params {
    pub(crate) fn new(pairs: Vec<(String, String)>) -> Self {
        Self { left: pairs, known: Vec::new(), missing: None, path: Vec::new() }
    }

    /// Adds the parameters that are parts of the path.
    pub(crate) fn with_path(self, path: &RawPathParams) -> Self {
        let path = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { path: path.collect(), ..self }
    }

    /// Returns a part of the path.
    pub(crate) fn path(&mut self, name: &'static str) -> Result<String, AdminError> {
        let part = self.path.iter_mut().find(|(known, _)| known == name);
        Ok(part.map(|(_, value)| std::mem::take(value)).unwrap_or_default())
    }

    /// Returns all values of a parameter.
    pub(crate) fn list(&mut self, name: &'static str) -> Vec<String> {
        self.known.push(name);
        let (taken, left) =
            std::mem::take(&mut self.left).into_iter().partition(|(n, _)| n == name);
        self.left = left;
        let taken: Vec<(String, String)> = taken;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// Returns all values of a parameter of an operation that has more parameters.
    pub(crate) fn texts(&mut self, name: &'static str) -> Result<Vec<String>, AdminError> {
        Ok(self.list(name))
    }

    /// Returns the value of a parameter that may occur once.
    pub(crate) fn one(&mut self, name: &'static str) -> Result<Option<String>, AdminError> {
        let mut values = self.list(name);
        match values.len() {
            0 | 1 => Ok(values.pop()),
            n => Err(AdminError::Parameter(format!("the parameter {name} is given {n} times"))),
        }
    }

    /// Returns the keys and values of a parameter of the form `KEY=VALUE`.
    pub(crate) fn pairs(
        &mut self,
        name: &'static str,
    ) -> Result<BTreeMap<String, String>, AdminError> {
        let mut pairs = BTreeMap::new();
        for text in self.list(name) {
            let Some((key, value)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
                return Err(AdminError::Parameter(format!(
                    "{name}={text:?} is invalid; it must have the form {name}=KEY=VALUE"
                )));
            };
            if pairs.insert(key.to_owned(), value.to_owned()).is_some() {
                let text = format!("{name} is given twice for the key {key:?}");
                return Err(AdminError::Parameter(text));
            }
        }
        Ok(pairs)
    }

    /// Returns a text, or an empty text if the parameter is missing.
    pub(crate) fn text(&mut self, name: &'static str) -> Result<String, AdminError> {
        Ok(self.one(name)?.unwrap_or_default())
    }

    /// Returns a text, or an empty text if the parameter is missing. An empty value is an error: it would select more than
    /// the caller meant.
    pub(crate) fn given_text(&mut self, name: &'static str) -> Result<String, AdminError> {
        match self.one(name)? {
            Some(text) if text.is_empty() => Err(AdminError::Parameter(format!(
                "the parameter {name} is empty; give it a value or omit it"
            ))),
            text => Ok(text.unwrap_or_default()),
        }
    }

    /// Returns a text. If the parameter is missing, [`Params::finish`] rejects the request.
    pub(crate) fn required_text(&mut self, name: &'static str) -> Result<String, AdminError> {
        let text = self.one(name)?;
        self.missing = self.missing.or(text.is_none().then_some(name));
        Ok(text.unwrap_or_default())
    }

    /// Returns a flag: `true`, `1` or an empty value for true, `false` or `0` for false.
    pub(crate) fn flag(&mut self, name: &'static str) -> Result<bool, AdminError> {
        Ok(self.optional_flag(name)?.unwrap_or_default())
    }

    /// Returns a time in milliseconds.
    pub(crate) fn millis(&mut self, name: &'static str) -> Result<Option<u64>, AdminError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let millis = time(name, &text, "a time")?.as_millis();
        Ok(Some(u64::try_from(millis).unwrap_or(u64::MAX)))
    }

    /// Returns a flag, or `None` if the parameter is missing.
    pub(crate) fn optional_flag(&mut self, name: &'static str) -> Result<Option<bool>, AdminError> {
        match self.one(name)?.as_deref() {
            None => Ok(None),
            Some("false" | "0") => Ok(Some(false)),
            Some("" | "true" | "1") => Ok(Some(true)),
            Some(value) => Err(AdminError::Parameter(format!(
                "the parameter {name} is {value:?}; it must be true or false"
            ))),
        }
    }

    /// Returns a whole number.
    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<u64>, AdminError> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        whole_number(&value).map(Some).ok_or_else(|| {
            let text =
                format!("the parameter {name} is {value:?}; it must be a whole number from 0");
            AdminError::Parameter(text)
        })
    }

    /// Returns a whole number, or 0 if the parameter is missing.
    pub(crate) fn number_or_zero(&mut self, name: &'static str) -> Result<u64, AdminError> {
        Ok(self.number(name)?.unwrap_or_default())
    }

    /// Returns a whole number. If the parameter is missing, [`Params::finish`] rejects the request.
    pub(crate) fn required_number(&mut self, name: &'static str) -> Result<u64, AdminError> {
        let number = self.number(name)?;
        self.missing = self.missing.or(number.is_none().then_some(name));
        Ok(number.unwrap_or_default())
    }

    /// Returns a part of the path that is a whole number.
    pub(crate) fn path_number(&mut self, name: &'static str) -> Result<u64, AdminError> {
        let text = self.path(name)?;
        whole_number(&text).ok_or_else(|| {
            AdminError::Parameter(format!(
                "the {name} is {text:?}; it must be a whole number from 0"
            ))
        })
    }

    /// Returns the maximum number of items, or 0 if the parameter is missing. The operation rejects a number over its maximum.
    pub(crate) fn limit(&mut self, name: &'static str) -> Result<u32, AdminError> {
        self.capped(name)
    }

    /// Returns a number, or 0 if the parameter is missing. The operation lowers it to its maximum.
    pub(crate) fn capped(&mut self, name: &'static str) -> Result<u32, AdminError> {
        Ok(u32::try_from(self.number_or_zero(name)?).unwrap_or(u32::MAX))
    }

    /// Returns the options of a write.
    pub(crate) fn options(&mut self) -> Result<Option<pb::WriteOptions>, AdminError> {
        self.write_options().map(Some)
    }

    /// Returns the options that all writes have. `wait` is a time, as in `--wait=10s`. `wait=true`
    /// waits for `timeout`, or for 30 seconds. A number without a unit is rejected, because it
    /// could be a time or a flag.
    fn write_options(&mut self) -> Result<pb::WriteOptions, AdminError> {
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
            labels: labels(&self.list("labels"))?,
            author: self.text("author")?,
            reason: self.text("reason")?,
            problems_in_response: false,
            request_id: self.text("request_id")?,
            stale: self.flag("stale")?,
            confirm: names(&self.list("confirm")),
            validation: self.text("validation")?,
            override_freeze: self.flag("override_freeze")?,
        })
    }

    /// Rejects unknown parameters, and then missing required parameters: an unknown name may be a misspelled required one.
    pub(crate) fn finish(&mut self) -> Result<(), AdminError> {
        let Some((name, _)) = self.left.first() else {
            let missing =
                |name| AdminError::Parameter(format!("the required parameter `{name}` is missing"));
            return self.missing.map(missing).map_or(Ok(()), Err);
        };
        let known = match self.known.as_slice() {
            [] => "no parameters are known here".to_owned(),
            known => format!("known parameters are {}", known.join(", ")),
        };
        Err(AdminError::Parameter(format!("unknown parameter {name:?}; {known}")))
    }
}

/// Parses a whole number of digits only. The parser of the standard library also accepts a leading `+`.
pub(crate) fn whole_number(text: &str) -> Option<u64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

/// Splits values with several names: `a,b`.
fn names(values: &[String]) -> Vec<String> {
    values.iter().flat_map(|value| value.split(',')).map(|name| name.trim().to_owned()).collect()
}

/// Parses labels: `a=1,b=2`.
fn labels(values: &[String]) -> Result<BTreeMap<String, String>, AdminError> {
    let mut labels = BTreeMap::new();
    for text in values.iter().flat_map(|value| value.split(',')) {
        let Some((key, value)) = text.split_once('=') else {
            let text = format!("labels: {text:?} has no `=`; write KEY=VALUE,KEY=VALUE");
            return Err(AdminError::Parameter(text));
        };
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(AdminError::Parameter(format!("labels: the key {key:?} is there twice")));
        }
    }
    Ok(labels)
}

/// Parses a time such as `500ms`, `10s`, `2m` or `1h`.
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
            "the parameter {name} is {text:?}; it must be {what} with its unit, such as 500ms, 10s or 2m"
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
    fn wait_duration_comes_from_wait_then_timeout_then_default() {
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

    /// Like `--wait=`, which also could not distinguish a flag from a number of seconds.
    #[test]
    fn wait_without_a_unit_is_refused() {
        for value in ["", "0", "1", "2", "soon"] {
            let error = params(&[("wait", value)]).write_options().unwrap_err().to_string();
            let rule = "it must be true, false or a time with its unit, such as 500ms, 10s or 2m";
            assert_eq!(error, format!("the parameter wait is {value:?}; {rule}"));
        }
    }

    /// A key has one value, and a repeated key is an error.
    #[test]
    fn repeated_key_of_pairs_is_rejected() {
        let pairs =
            |all: &[(&str, &str)]| params(all).pairs("parameter").map_err(|e| e.to_string());
        let two = [("parameter", "a=1"), ("parameter", "b=x=y")];
        assert_eq!(pairs(&two).unwrap()["b"], "x=y");
        let error = pairs(&[("parameter", "a=1"), ("parameter", "a=2")]).unwrap_err();
        assert_eq!(error, "parameter is given twice for the key \"a\"");
        let error = pairs(&[("parameter", "=1")]).unwrap_err();
        assert_eq!(error, "parameter=\"=1\" is invalid; it must have the form parameter=KEY=VALUE");
    }

    /// The description of the API has `allowEmptyValue` for all flags.
    #[test]
    fn flag_without_a_value_is_true() {
        let flag = |value| params(&[("discard", value)]).flag("discard").unwrap();
        assert!(["", "true", "1"].map(flag).iter().all(|is_set| *is_set));
        assert!(!["false", "0"].map(flag).iter().any(|is_set| *is_set));
        assert!(!params(&[]).flag("discard").unwrap());
    }

    #[test]
    fn invalid_parameter_is_rejected() {
        let error = params(&[("dry_run", "maybe")]).flag("dry_run").unwrap_err().to_string();
        assert_eq!(error, "the parameter dry_run is \"maybe\"; it must be true or false");
        for value in ["-1", "+5", "", " 5", "5.0", "18446744073709551616"] {
            let error = params(&[("n", value)]).number("n").unwrap_err().to_string();
            let rule = "it must be a whole number from 0";
            assert_eq!(error, format!("the parameter n is {value:?}; {rule}"));
        }
        assert_eq!(params(&[("n", "5")]).number("n").unwrap(), Some(5));
        let error = params(&[("n", "1"), ("n", "2")]).number("n").unwrap_err().to_string();
        assert_eq!(error, "the parameter n is given 2 times");
        let finished = |pairs: &[(&str, &str)]| {
            let mut params = params(pairs);
            params.required_number("n").unwrap();
            params.finish().map_err(|error| error.to_string())
        };
        assert_eq!(finished(&[("n", "0")]), Ok(()));
        assert_eq!(finished(&[]), Err("the required parameter `n` is missing".to_owned()));
        let unknown = "unknown parameter \"m\"; known parameters are n";
        assert_eq!(finished(&[("m", "1")]), Err(unknown.to_owned()));
        let mut typed = params(&[]);
        typed.required_text("type").unwrap();
        let error = typed.finish().unwrap_err().to_string();
        assert_eq!(error, "the required parameter `type` is missing");
        let mut two = params(&[("scope", "a"), ("prun", "true")]);
        two.text("scope").unwrap();
        two.flag("prune").unwrap();
        let error = two.finish().unwrap_err().to_string();
        assert_eq!(error, "unknown parameter \"prun\"; known parameters are scope, prune");
    }
}
