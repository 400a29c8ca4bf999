//! The command `analyze`.

use std::io::{self, Write};

use chancery_admin_proto::v1::{
    self as pb, AnalyzeRequest, analysis_service_client::AnalysisServiceClient,
};
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{
    client::refusal,
    connector::Channel,
    fleet::{check_complete, unanswered},
    read::Read,
};
use crate::{
    answer::Answer,
    exit::Exit,
    failure::Failure,
    table::Table,
    text::{count, short_type},
};

/// The arguments of `analyze`.
#[derive(Debug, Args)]
pub(crate) struct Analyze {
    /// Analyze only this scope and its resources [default: all scopes and the assignments]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    #[command(flatten)]
    read: Read,
}

/// Prints the findings about what is stored. Fails if one of them is a warning.
pub(super) async fn run(
    analyze: Analyze,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let mut client = AnalysisServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let request = AnalyzeRequest {
        scope: analyze.scope.unwrap_or_default(),
        stale: analyze.read.stale,
        ..Default::default()
    };
    let response = client.analyze(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| write_findings(&response, out))?;
    if response.warnings > 0 {
        let found = format!("the analysis has {}", count(response.warnings, "warning"));
        let missing = (!response.not_asked.is_empty())
            .then(|| format!("incomplete: {}", unanswered(&response.not_asked)));
        return Err(Failure::with_exit(Exit::Findings, found).with_warnings(missing));
    }
    check_complete(&response.not_asked)
}

fn write_findings(response: &pb::AnalyzeResponse, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(["SEVERITY", "RULE", "SCOPE", "TYPE", "NAME", "FINDING"]);
    for finding in &response.findings {
        let pb::AnalysisFinding { field_path, message, fix, .. } = finding;
        let field = if field_path.is_empty() { String::new() } else { format!("{field_path}: ") };
        let variant = match finding.variant.as_str() {
            "" => String::new(),
            constraints => format!(" [{constraints}]"),
        };
        table.row([
            finding.severity.clone(),
            finding.rule_id.clone(),
            finding.scope.clone(),
            if finding.type_url.is_empty() { String::new() } else { short_type(&finding.type_url) },
            format!("{}{variant}", finding.name),
            format!("{field}{message}; {fix}"),
        ]);
    }
    if !table.is_empty() {
        table.write(out, "")?;
    }
    let n = response.findings.len() as u64 + response.findings_omitted;
    let omitted = match response.findings_omitted {
        0 => String::new(),
        n => format!(", {n} not shown"),
    };
    let (findings, resources) = (count(n, "finding"), count(response.resources, "resource"));
    writeln!(
        out,
        "{findings} ({}{omitted}) about {resources} at revision {}",
        count(response.warnings, "warning"),
        response.revision
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_row_for_each_finding_and_the_numbers_of_all() {
        let finding =
            |scope: &str, type_url: &str, name: &str, field_path: &str| pb::AnalysisFinding {
                rule_id: "a.b".to_owned(),
                severity: "warning".to_owned(),
                scope: scope.to_owned(),
                type_url: type_url.to_owned(),
                name: name.to_owned(),
                field_path: field_path.to_owned(),
                message: "is odd".to_owned(),
                fix: "remove it".to_owned(),
                ..pb::AnalysisFinding::default()
            };
        let response = pb::AnalyzeResponse {
            revision: 7,
            findings: vec![
                finding("edge", chancery_model::types::ROUTE, "main", "routes[1]"),
                finding("", "", "all", ""),
            ],
            findings_omitted: 3,
            warnings: 1,
            resources: 1,
            ..pb::AnalyzeResponse::default()
        };
        let mut out = Vec::new();
        write_findings(&response, &mut out).unwrap();
        let expected = "SEVERITY  RULE  SCOPE  TYPE   NAME  FINDING\n\
                        warning   a.b   edge   route  main  routes[1]: is odd; remove it\n\
                        warning   a.b   -      -      all   is odd; remove it\n\
                        5 findings (1 warning, 3 not shown) about 1 resource at revision 7\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
