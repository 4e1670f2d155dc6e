//! Filters for the kernel that know of values which could not be read.
//!
//! Owns where the proof that a field was read stands in a filter. The kernel compares with whatever was in its buffer
//! when a read fails, so that a comparison and its opposite mean something only beside such a proof. Never says what
//! proves a field.

use std::collections::HashSet;

use super::Filter;
use super::ast::Expression;

impl Filter {
    /// What certainly holds: neither a comparison with a value that was not read holds, nor its opposite, so that only
    /// other comparisons select such events. `proof` is a filter that holds if and only if the field was read; absent
    /// of a field that needs none.
    #[must_use]
    pub fn certain(&self, proof: &impl Fn(&str) -> Option<Self>) -> Self {
        Self { expression: proven(&self.expression, proof, true) }
    }

    /// What holds or may hold: a comparison with a value that was not read holds, and so does its opposite.
    #[must_use]
    pub fn possible(&self, proof: &impl Fn(&str) -> Option<Self>) -> Self {
        Self { expression: proven(&self.expression, proof, false) }
    }
}

impl Filter {
    /// What was written before [`Filter::certain`] put these proofs beside it. `None` if nothing else is there.
    pub fn without<'a, I: IntoIterator<Item = &'a Self>>(&self, proofs: I) -> Option<Self> {
        let mut texts = HashSet::new();
        for Self { expression } in proofs {
            texts.insert(expression.to_string());
            texts.insert(expression.clone().negated().to_string());
            if let Expression::And(parts) = expression {
                texts.extend(parts.iter().map(ToString::to_string));
            }
        }
        without(&self.expression, &texts).map(|expression| Self { expression })
    }
}

fn without(expression: &Expression, proofs: &HashSet<String>) -> Option<Expression> {
    let rest = |parts: &[Expression]| {
        let rest = parts.iter().filter(|part| !proofs.contains(&part.to_string()));
        let rest: Vec<_> = rest.filter_map(|part| without(part, proofs)).collect();
        (!rest.is_empty()).then_some(rest)
    };
    match expression {
        Expression::Term(_) => Some(expression.clone()),
        Expression::Not(inner) => without(inner, proofs).map(Expression::negated),
        Expression::And(parts) => rest(parts).map(Expression::all),
        Expression::Or(parts) => rest(parts).map(Expression::any),
    }
}

/// With the proof of each field beside it. Under a `!`, what holds when nothing is known turns over.
fn proven(expression: &Expression, proof: &impl Fn(&str) -> Option<Filter>, certain: bool) -> Expression {
    match expression {
        Expression::Term(term) => match proof(&term.field) {
            None => expression.clone(),
            Some(proof) if certain => Expression::all(vec![expression.clone(), proof.expression]),
            Some(proof) => Expression::any(vec![expression.clone(), proof.expression.negated()]),
        },
        Expression::Not(inner) => proven(inner, proof, !certain).negated(),
        Expression::And(parts) => {
            Expression::all(parts.iter().map(|part| proven(part, proof, certain)).collect())
        }
        Expression::Or(parts) => {
            Expression::any(parts.iter().map(|part| proven(part, proof, certain)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(field: &str) -> Option<Filter> {
        field.starts_with('m').then(|| Filter::parse(&format!("g_{field} == 0")).unwrap())
    }

    fn both(text: &str) -> [String; 2] {
        let filter = Filter::parse(text).unwrap();
        [filter.certain(&proof).to_string(), filter.possible(&proof).to_string()]
    }

    #[test]
    fn a_comparison_stands_beside_its_proof() {
        for (text, certain, possible) in [
            ("a == 1", "a == 1", "a == 1"),
            ("m == 1", "m == 1 && g_m == 0", "m == 1 || !g_m == 0"),
            ("!(m == 1)", "!(m == 1 || !g_m == 0)", "!(m == 1 && g_m == 0)"),
            ("m != 1 || a == 1", "m != 1 && g_m == 0 || a == 1", "m != 1 || !g_m == 0 || a == 1"),
            ("!(m > 1 && a == 1)", "!((m > 1 || !g_m == 0) && a == 1)", "!(m > 1 && g_m == 0 && a == 1)"),
        ] {
            assert_eq!(both(text), [certain, possible], "{text}");
            let without = Filter::parse(certain).unwrap().without(&[proof("m").unwrap()]).unwrap();
            assert_eq!(without.to_string(), text.replace("!(m == 1)", "!m == 1"));
        }
    }
}
