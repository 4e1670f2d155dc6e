//! Waves of a roll-out: which hosts are changed together.
//!
//! Owns the notation `1,5%,100%`, and the division of a list of hosts into waves.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How many hosts are changed when a wave is over, counted from the first one: `1,5%,100%`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waves(Vec<Reach>);

/// A number of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Hosts(u64),
    /// A percentage, rounded up.
    Percent(u64),
}

impl Reach {
    fn of(self, hosts: usize) -> usize {
        match self {
            Self::Hosts(count) => usize::try_from(count).unwrap_or(usize::MAX).min(hosts),
            Self::Percent(percent) => {
                // At most `hosts`, because a percentage is at most 100.
                usize::try_from((hosts as u128 * u128::from(percent)).div_ceil(100)).unwrap_or(hosts)
            }
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Reach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_suffix('%').unwrap_or(text);
        let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        match number.filter(|number| *number > 0) {
            Some(hosts) if digits.len() == text.len() => Ok(Self::Hosts(hosts)),
            Some(percent @ 1..=100) => Ok(Self::Percent(percent)),
            _ => Err(format!(
                "`{text}` is neither a number of hosts nor a percentage from 1% to 100%: write waves as in `1,5%,100%`"
            )),
        }
    }
}

impl FromStr for Waves {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let reaches = text.split(',').map(|term| term.trim().parse()).collect::<Result<Vec<Reach>, _>>()?;
        // A number and a percentage compare only when the hosts are known.
        let is_behind = |pair: &&[Reach]| match pair {
            [Reach::Hosts(before), Reach::Hosts(next)] | [Reach::Percent(before), Reach::Percent(next)] => {
                before >= next
            }
            _ => false,
        };
        if let Some([before, next]) = reaches.windows(2).find(is_behind) {
            return Err(format!(
                "the wave `{next}` reaches no further than `{before}`: each wave counts from the first host, as in `1,5%,100%`"
            ));
        }
        Ok(Self(reaches))
    }
}

impl fmt::Display for Waves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reaches: Vec<_> = self.0.iter().map(Reach::to_string).collect();
        f.write_str(&reaches.join(","))
    }
}

impl Waves {
    /// Divides this many hosts into waves: each host is in exactly one. Empty waves are left out.
    ///
    /// # Errors
    /// When hosts are left over after the last wave.
    pub(crate) fn cut(&self, hosts: usize) -> Result<Vec<Range<usize>>, String> {
        let (mut waves, mut begin) = (Vec::new(), 0);
        for reach in &self.0 {
            let end = reach.of(hosts);
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
    }

    #[test]
    fn mistakes_are_named() {
        for text in ["", "0", "1,,2", "0%", "101%", "1.5%", "-1", "one", "%", "99999999999999999999"] {
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
