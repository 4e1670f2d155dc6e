//! Filter of `--filter`, `--pid`, `--comm` and `--cpu` together.

/// Combines the user's filter and the other options, in the language of the kernel's filters.
/// Options of the same kind are alternatives. The user's text stays first, so that spans in
/// messages fit it.
///
/// # Errors
/// When a name cannot be written in that language, which knows no escapes: it has both kinds of quotes in it.
pub(super) fn combined(own: &str, tids: &[i32], comms: &[String], cpus: &[u32]) -> Result<String, String> {
    let mut parts = Vec::new();
    if !own.trim().is_empty() {
        parts.push(own.to_owned());
    }
    let comms = comms.iter().map(|comm| of_comm(comm)).collect::<Result<Vec<_>, _>>()?;
    let tids: Vec<_> = tids.iter().map(|tid| format!("pid == {tid}")).collect();
    let cpus: Vec<_> = cpus.iter().map(|cpu| format!("cpu == {cpu}")).collect();
    parts.extend([tids, comms, cpus].iter().filter_map(|conditions| any_of(conditions)));
    Ok(match parts.as_slice() {
        [part] => part.clone(),
        parts => parts.iter().map(|part| format!("({part})")).collect::<Vec<_>>().join(" && "),
    })
}

fn any_of(conditions: &[String]) -> Option<String> {
    (!conditions.is_empty()).then(|| conditions.join(" || "))
}

fn of_comm(comm: &str) -> Result<String, String> {
    let quote = ['"', '\''].into_iter().find(|quote| !comm.contains(*quote)).ok_or_else(|| {
        format!("the task name `{comm}` has both `\"` and `'`, which a filter cannot express")
    })?;
    let operator = if comm.contains(['*', '?', '[']) { "~" } else { "==" };
    Ok(format!("comm {operator} {quote}{comm}{quote}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(own: &str, tids: &[i32], comms: &[&str], cpus: &[u32]) -> Result<String, String> {
        let comms: Vec<String> = comms.iter().map(|comm| (*comm).to_owned()).collect();
        combined(own, tids, &comms, cpus)
    }

    #[test]
    fn options_become_a_filter() {
        assert_eq!(of("", &[], &[], &[]).unwrap(), "");
        assert_eq!(of("a == 1 || b", &[], &[], &[]).unwrap(), "a == 1 || b", "as it was written");
        assert_eq!(of("", &[7], &[], &[]).unwrap(), "pid == 7");
        assert_eq!(
            of("a == 1 || b", &[7, 8], &["ssh*", "cat"], &[0]).unwrap(),
            "(a == 1 || b) && (pid == 7 || pid == 8) && (comm ~ \"ssh*\" || comm == \"cat\") && (cpu == 0)"
        );
        assert_eq!(of("", &[], &["a\"b"], &[]).unwrap(), "comm == 'a\"b'");
        assert!(of("", &[], &["a\"b'"], &[]).is_err());
    }
}
