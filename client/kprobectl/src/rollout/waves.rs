//! Waves of a roll-out: which hosts are changed together.
//!
//! Owns the notation `1,5%,100%`, and the division of a list of hosts into waves.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::quantity::Limit;

/// How many hosts are changed when a wave is over, counted from the first one: `1,5%,100%`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waves(Vec<Limit>);

/// How many of the hosts a wave reaches: of a percentage, rounded up.
fn reached(wave: Limit, hosts: usize) -> usize {
    match wave {
        Limit::Count(count) => usize::try_from(count).unwrap_or(usize::MAX).min(hosts),
        // At most `hosts`, because a share is at most all of them.
        Limit::Share(share) => {
            usize::try_from((hosts as u128 * u128::from(share)).div_ceil(1_000_000)).unwrap_or(hosts)
        }
    }
}

fn wave(text: &str) -> Result<Limit, String> {
    let is_some = |wave: &Limit| !matches!(wave, Limit::Count(0) | Limit::Share(0));
    text.parse().ok().filter(is_some).ok_or_else(|| {
        format!(
            "`{text}` is neither a number of hosts nor a percentage up to 100%: write waves as in `1,5%,100%`"
        )
    })
}

impl FromStr for Waves {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let waves = text.split(',').map(|term| wave(term.trim())).collect::<Result<Vec<_>, _>>()?;
        // A number and a percentage compare only when the hosts are known.
        let is_behind = |pair: &&[Limit]| match pair {
            [Limit::Count(before), Limit::Count(next)] => before >= next,
            [Limit::Share(before), Limit::Share(next)] => before >= next,
            _ => false,
        };
        if let Some([before, next]) = waves.windows(2).find(is_behind) {
            return Err(format!(
                "the wave `{next}` reaches no further than `{before}`: each wave counts from the first host, as in `1,5%,100%`"
            ));
        }
        Ok(Self(waves))
    }
}

impl fmt::Display for Waves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waves: Vec<_> = self.0.iter().map(Limit::to_string).collect();
        f.write_str(&waves.join(","))
    }
}

impl Waves {
    /// Divides this many hosts into waves: each host is in exactly one. Empty waves are left out.
    ///
    /// # Errors
    /// When hosts are left over after the last wave.
    pub(crate) fn cut(&self, hosts: usize) -> Result<Vec<Range<usize>>, String> {
        let (mut waves, mut begin) = (Vec::new(), 0);
        for wave in &self.0 {
            let end = reached(*wave, hosts);
            if end > begin {
                waves.push(begin..end);
                begin = end;
            }
        }
        if begin < hosts {
            return Err(format!("the last wave reaches {begin} of {hosts} hosts: end with `100%`"));
        }
        Ok(waves)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(waves: &str, hosts: usize) -> Vec<usize> {
        waves.parse::<Waves>().unwrap().cut(hosts).unwrap().into_iter().map(|wave| wave.len()).collect()
    }

    #[test]
    fn waves_count_from_the_first_host_and_round_up() {
        assert_eq!(cut("1,5%,100%", 480), [1, 23, 456]);
        assert_eq!(cut("1,5%,100%", 10), [1, 9], "5% of 10, rounded up, is the first host");
        assert_eq!(cut("1,5%,100%", 1), [1]);
        assert_eq!(cut("2,50%,100%", 3), [2, 1]);
        assert_eq!(cut("100%", 0), [0_usize; 0]);
        assert_eq!(cut("3,9", 5), [3, 2]);
        assert_eq!(cut("0.5%,100%", 400), [2, 398]);
    }

    #[test]
    fn mistakes_are_named() {
        for text in ["", "0", "1,,2", "0%", "101%", "0.00001%", "-1", "one", "%", "99999999999999999999"] {
            assert!(text.parse::<Waves>().unwrap_err().contains("is neither a number of hosts"), "{text}");
        }
        for (text, problem) in [
            ("50%,5%,100%", "the wave `5%` reaches no further than `50%`"),
            ("3,3", "the wave `3` reaches no"),
        ] {
            assert!(text.parse::<Waves>().unwrap_err().starts_with(problem), "{text}");
        }
        let short = "1,50%".parse::<Waves>().unwrap().cut(9).unwrap_err();
        assert_eq!(short, "the last wave reaches 5 of 9 hosts: end with `100%`");
    }

    proptest! {
        #[test]
        fn each_host_is_in_exactly_one_wave(
            terms in proptest::collection::vec((1_u64..300, any::<bool>()), 0..6),
            hosts in 0_usize..2000,
        ) {
            let mut text: Vec<String> = terms
                .iter()
                .map(|(number, percent)| if *percent { format!("{}%", number % 100 + 1) } else { number.to_string() })
                .collect();
            text.push("100%".to_owned());
            if let Ok(waves) = text.join(",").parse::<Waves>() {
                prop_assert_eq!(waves.to_string(), text.join(","));
                let cut = waves.cut(hosts).unwrap();
                let all: Vec<usize> = cut.iter().cloned().flatten().collect();
                prop_assert_eq!(all, (0..hosts).collect::<Vec<_>>());
                prop_assert!(cut.iter().all(|wave| !wave.is_empty()));
            }
        }

        #[test]
        fn no_text_is_too_odd(text in "[0-9%, a-]{0,30}") {
            if let Ok(waves) = text.parse::<Waves>() {
                waves.cut(100).ok();
            }
        }
    }
}
