//! Calls of a run: the events of both ends of each, joined, filtered and printed.
//!
//! The filter is evaluated here, on both ends together: in the daemon it would leave out one of them. That holds for
//! the events of other probes in such a run too.

use std::collections::HashMap;

use kprobed_client::api::Probe;
use kprobed_client::event::format::{Call, Origin};
use kprobed_client::event::{
    Batch, BoundEventFilter, CallEnd, Calls, EventFilter, EventFilterError, Loss, OwnedRow, Row, Schema,
    StreamRequest,
};

use crate::command::Failure;
use crate::command::definitions::called;
use crate::output::EventPrinter;

/// Calls of one host that may be open, and bytes of their entries. Of more, the oldest are shown without a return.
const MOST_OPEN: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

/// A function whose calls are shown.
struct CalledFunction {
    function: String,
    /// How many times it was given before.
    twins: usize,
}

/// The calls of all hosts of a run. Without any, every event is printed as it comes.
#[derive(Default)]
pub(super) struct JoinedCalls {
    calls: Vec<CalledFunction>,
    filter: Option<EventFilter>,
    /// By name; the only host has none.
    hosts: HashMap<String, HostCalls>,
}

/// An entry that waits for its return.
struct Entry {
    call: usize,
    row: OwnedRow,
    /// In a merged stream, in nanoseconds since 1970.
    corrected_ns: u64,
}

/// An end of a call, or the event of another probe.
#[derive(Clone, Copy, Debug)]
enum Role {
    Entry(usize),
    Exit(usize),
}

/// What a filter needs of a call.
#[derive(Default)]
struct CallFilter {
    entry: Option<Schema>,
    exit: Option<Schema>,
    /// Absent until both are known.
    bound: Option<BoundEventFilter>,
}

#[derive(Default)]
struct HostCalls {
    /// Of the probes of calls, by name.
    roles: HashMap<String, Role>,
    /// Calls of different functions, whose order in a thread tells which returns are missing. The calls of one function
    /// that was given twice are apart.
    open: Vec<Calls<Entry>>,
    filters: Vec<CallFilter>,
    /// Of other probes, by name.
    others: HashMap<String, BoundEventFilter>,
}

impl JoinedCalls {
    /// Those of these definitions. If there are some, the filter of the request is taken out of it.
    ///
    /// # Errors
    /// When the request has what cannot be said of calls.
    pub(super) fn of(arguments: &[String], request: &mut StreamRequest) -> Result<Self, Failure> {
        let functions = called(arguments)?;
        if functions.is_empty() {
            return Ok(Self::default());
        }
        let selection = request.selection();
        if selection.sample_one_in > 1 {
            let message = "`--sample` takes single events, and a call is two";
            return Err(Failure::usage(message, "use `--filter`, or `-n` to stop early"));
        }
        let text = selection.filter.clone();
        let filter = if text.is_empty() {
            None
        } else {
            Some(EventFilter::new(&text).map_err(|error| not_a_filter(&text, &error))?)
        };
        *request = request.clone().filter("");
        let twins =
            |at: usize| functions.iter().take(at).filter(|other| functions.get(at) == Some(*other)).count();
        let calls = functions.iter().enumerate();
        let calls =
            calls.map(|(at, function)| CalledFunction { function: function.clone(), twins: twins(at) });
        Ok(Self { calls: calls.collect(), filter, hosts: HashMap::new() })
    }

    /// Whether no calls are shown.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// A host has these probes. `places`: where the two probes of each call are among them.
    ///
    /// # Errors
    /// When the filter fits none of them, or the ends of a call have fields of one name.
    pub(super) fn add_host(&mut self, host: &str, probes: &[Probe], places: &[usize]) -> Result<(), Failure> {
        if self.is_empty() {
            return Ok(());
        }
        let mut of_host = HostCalls::default();
        let schema = |at: usize| {
            let schema = probes.get(at)?.schema.clone()?;
            Schema::try_from(schema).ok()
        };
        for (index, (call, exit)) in self.calls.iter().zip(places).enumerate() {
            for (at, role) in [(*exit, Role::Exit(index)), (exit + 1, Role::Entry(index))] {
                of_host.roles.extend(probes.get(at).map(|probe| (probe.name.clone(), role)));
            }
            while of_host.open.len() <= call.twins {
                of_host.open.push(Calls::new(MOST_OPEN, MOST_BYTES));
            }
            let filter = CallFilter { entry: schema(exit + 1), exit: schema(*exit), bound: None };
            if let (Some(entry), Some(exit)) = (&filter.entry, &filter.exit) {
                distinct(&call.function, entry, exit)?;
            }
            of_host.filters.push(filter);
        }
        self.check_filter(host, probes, &mut of_host)?;
        self.hosts.insert(host.to_owned(), of_host);
        Ok(())
    }

    /// Looks whether the filter fits a call or another probe, as far as these are known.
    fn check_filter(&self, host: &str, probes: &[Probe], of_host: &mut HostCalls) -> Result<(), Failure> {
        let Some(filter) = &self.filter else { return Ok(()) };
        let (mut problem, mut fits) = (None, false);
        for (call, of_call) in self.calls.iter().zip(&mut of_host.filters) {
            match of_call.bind(filter, &call.function, host) {
                None | Some(Ok(())) => fits = true,
                Some(Err(error)) => problem = problem.or(Some(error)),
            }
        }
        for probe in probes.iter().filter(|probe| !of_host.roles.contains_key(&probe.name)) {
            let schema = probe.schema.clone().and_then(|schema| Schema::try_from(schema).ok());
            let bound = schema.map(|schema| filter.bind(&probe.name, host, &[&schema]));
            fits |= !matches!(bound, Some(Err(_)));
        }
        match problem.filter(|_| !fits) {
            Some(error) => Err(not_a_filter(&filter.to_string(), &error.into())),
            None => Ok(()),
        }
    }

    /// A batch of the only host has arrived: its events come later, in the order of time.
    pub(super) fn arrived(&mut self, batch: &Batch) {
        for open in self.hosts.values_mut().flat_map(|of_host| &mut of_host.open) {
            open.arrived(batch);
        }
    }

    /// Events of a host are lost. `arrived`: in a merge, the time stamp of the last event of each CPU that had arrived
    /// before them.
    pub(super) fn gap(&mut self, host: &str, loss: &Loss, arrived: &[(u32, u64)]) {
        for open in self.hosts.get_mut(host).into_iter().flat_map(|of_host| &mut of_host.open) {
            for (cpu, timestamp_ns) in arrived {
                open.arrived_at(*cpu, *timestamp_ns);
            }
            open.gap(loss);
        }
    }

    /// Another run of the daemon begins on a host, or what comes next cannot be read.
    pub(super) fn begin_anew(&mut self, host: &str, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        self.end(host, Calls::begin_anew, printer)
    }

    /// The next event of the only host may not be in its order.
    pub(super) fn close(&mut self, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        self.end("", Calls::close, printer)
    }

    fn end(
        &mut self,
        host: &str,
        end: fn(&mut Calls<Entry>),
        printer: &mut EventPrinter<'_>,
    ) -> Result<(), Failure> {
        let Self { calls, filter, hosts } = self;
        let Some(of_host) = hosts.get_mut(host) else { return Ok(()) };
        of_host.open.iter_mut().for_each(end);
        of_host.print_incomplete((calls, filter.as_ref()), host, printer)
    }

    /// Prints the calls that are open at the end.
    pub(super) fn finish(&mut self, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        let mut hosts: Vec<_> = self.hosts.keys().cloned().collect();
        hosts.sort_unstable();
        hosts.iter().try_for_each(|host| self.end(host, Calls::finish, printer))
    }

    /// Takes the next event in the order of time: prints it, or the call that it completes.
    pub(super) fn row(
        &mut self,
        row: &Row<'_>,
        origin: Option<Origin<'_>>,
        printer: &mut EventPrinter<'_>,
    ) -> Result<(), Failure> {
        let Self { calls, filter, hosts } = self;
        let host = origin.map_or("", |origin| origin.host);
        let Some(of_host) = hosts.get_mut(host) else { return Ok(printer.row(row, origin)?) };
        let Some(role) = of_host.roles.get(row.probe()).copied() else {
            if filter.as_ref().is_none_or(|filter| of_host.selects(filter, host, row)) {
                printer.row(row, origin)?;
            }
            return Ok(());
        };
        let (Role::Entry(index) | Role::Exit(index)) = role;
        let Some(call) = calls.get(index) else { return Ok(()) };
        // Calls of one function have one number, unless they are apart.
        let first = calls.iter().position(|other| other.function == call.function).unwrap_or(index);
        // A request without fields leaves no thread out.
        let Some(end) = CallEnd::of(row, first as u64) else { return Ok(()) };
        if filter.is_some() {
            of_host.learn(role, row);
        }
        let Some(open) = of_host.open.get_mut(call.twins) else { return Ok(()) };
        match role {
            Role::Entry(_) => {
                let row = row.to_owned();
                let corrected_ns = origin.map_or(0, |origin| origin.corrected_ns);
                open.enter(end, row.bytes(), |_caller| Entry { call: index, row, corrected_ns });
            }
            Role::Exit(_) => {
                let left = open.leave(end);
                // Calls within this one whose returns were missed come before it.
                of_host.print_incomplete((calls, filter.as_ref()), host, printer)?;
                let shown = match &left {
                    Ok(entry) => Call::Whole { entry: entry.row.row(), exit: *row },
                    Err(why) => Call::Exit(*row, *why),
                };
                return of_host.print((index, call), filter.as_ref(), &shown, origin, printer);
            }
        }
        of_host.print_incomplete((calls, filter.as_ref()), host, printer)
    }
}

impl CallFilter {
    /// Finds out what the filter means, if both ends are known.
    fn bind(
        &mut self,
        filter: &EventFilter,
        function: &str,
        host: &str,
    ) -> Option<Result<(), kprobed_filter::FilterError>> {
        let (entry, exit) = (self.entry.as_ref()?, self.exit.as_ref()?);
        let bound = filter.bind(function, host, &[entry, exit]);
        let outcome = bound.as_ref().map(|_| ()).map_err(Clone::clone);
        self.bound = Some(bound.unwrap_or(BoundEventFilter::NOTHING));
        Some(outcome)
    }
}

impl HostCalls {
    /// Remembers the fields of an end of which nothing was known, as of one in a module that was not loaded.
    fn learn(&mut self, role: Role, row: &Row<'_>) {
        let (Role::Entry(index) | Role::Exit(index)) = role;
        let Some(of_call) = self.filters.get_mut(index).filter(|of_call| of_call.bound.is_none()) else {
            return;
        };
        let end = if matches!(role, Role::Entry(_)) { &mut of_call.entry } else { &mut of_call.exit };
        end.get_or_insert_with(|| row.schema().clone());
    }

    /// Whether the filter selects the event of another probe. As in the daemon, one that does not fit selects none.
    fn selects(&mut self, filter: &EventFilter, host: &str, row: &Row<'_>) -> bool {
        if !self.others.contains_key(row.probe()) {
            let bound = filter.bind(row.probe(), host, &[row.schema()]);
            self.others.insert(row.probe().to_owned(), bound.unwrap_or(BoundEventFilter::NOTHING));
        }
        self.others.get(row.probe()).is_some_and(|bound| bound.matches(*row))
    }

    /// Prints the entries that are known to have no return.
    fn print_incomplete(
        &mut self,
        (calls, filter): (&[CalledFunction], Option<&EventFilter>),
        host: &str,
        printer: &mut EventPrinter<'_>,
    ) -> Result<(), Failure> {
        for at in 0..self.open.len() {
            while let Some((Entry { call: index, row, corrected_ns }, why)) =
                self.open.get_mut(at).and_then(Calls::next_incomplete)
            {
                let Some(call) = calls.get(index) else { continue };
                let origin = (!host.is_empty()).then_some(Origin { host, corrected_ns, late: false });
                let shown = Call::Entry(row.row(), why);
                self.print((index, call), filter, &shown, origin, printer)?;
            }
        }
        Ok(())
    }

    /// Counts a call, and prints it if the filter selects it and the limit is not reached.
    fn print(
        &mut self,
        (index, call): (usize, &CalledFunction),
        filter: Option<&EventFilter>,
        shown: &Call<'_>,
        origin: Option<Origin<'_>>,
        printer: &mut EventPrinter<'_>,
    ) -> Result<(), Failure> {
        if printer.is_full() {
            return Ok(());
        }
        printer.summary.count_call(shown.incomplete());
        if let Some(filter) = filter {
            let Some(of_call) = self.filters.get_mut(index) else { return Ok(()) };
            if of_call.bound.is_none() {
                of_call.bind(filter, &call.function, origin.map_or("", |origin| origin.host));
            }
            let is_selected = |bound: &BoundEventFilter| bound.matches_call(shown.entry(), shown.exit());
            if !of_call.bound.as_ref().is_some_and(is_selected) {
                return Ok(());
            }
        }
        Ok(printer.call(&call.function, shown, origin)?)
    }
}

/// The ends of a call have no two fields of one name: of `fields` in JSON, and of a filter, each is one value.
fn distinct(function: &str, entry: &Schema, exit: &Schema) -> Result<(), Failure> {
    let names = |schema: &Schema| schema.fields().iter().map(|field| field.name.clone()).collect::<Vec<_>>();
    let of_exit = names(exit);
    let Some(name) = names(entry).into_iter().find(|name| of_exit.contains(name)) else { return Ok(()) };
    let message = format!("`{name}` is an argument of `{function}`, and the name of its return value");
    Err(Failure::refused(message, "choose another name behind `->`"))
}

fn not_a_filter(text: &str, error: &EventFilterError) -> Failure {
    let hint = match error {
        EventFilterError::Syntax(error) => error.hint.clone(),
        _ => "a filter on calls is evaluated by this command, on the fields of both ends".to_owned(),
    };
    Failure::usage(format!("`{text}`: {error}"), &hint)
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::{EventBatch, EventGroup, EventSchema, LossCause};

    use super::*;

    /// Whether a call of CPU 0 at this time is joined.
    fn is_joined(joined: &mut JoinedCalls, timestamp_ns: u64) -> bool {
        let schema = EventSchema { schema_id: 1, probe: "a/b".to_owned(), ..Default::default() };
        let group = EventGroup {
            schema_id: 1,
            rows: 1,
            base_ns: timestamp_ns,
            offsets_ns: 0_u32.to_le_bytes().into_iter().collect(),
            tids: 7_i32.to_le_bytes().into_iter().collect(),
            ..Default::default()
        };
        let batch = EventBatch { groups: vec![group], ..Default::default() };
        let batch = Batch::from_parts(vec![schema], batch).unwrap();
        let row = batch.rows().next().unwrap();
        let end = CallEnd::of(&row, 0).unwrap();
        let open = &mut joined.hosts.get_mut("web").unwrap().open[0];
        open.enter(end, 8, |_caller| Entry { call: 0, row: row.to_owned(), corrected_ns: 0 });
        let left = open.leave(CallEnd { timestamp_ns: timestamp_ns + 1, ..end });
        while open.next_incomplete().is_some() {}
        left.is_ok()
    }

    /// A loss without a time, of a CPU of one of many hosts that has no event any more.
    #[test]
    fn a_gap_of_a_quiet_cpu_ends_in_a_merge_too() {
        const SECOND_NS: u64 = 1_000_000_000;
        let of_host = HostCalls {
            roles: HashMap::new(),
            open: vec![Calls::new(MOST_OPEN, MOST_BYTES)],
            filters: Vec::new(),
            others: HashMap::new(),
        };
        let hosts = HashMap::from([("web".to_owned(), of_host)]);
        let mut joined = JoinedCalls { calls: Vec::new(), filter: None, hosts };
        let loss = Loss {
            cause: LossCause::Overrun,
            cpu: Some(1),
            count: Some(1),
            before_ns: None,
            before_wall_ns: None,
            gaps: 1,
            pause: None,
        };
        joined.gap("web", &loss, &[(0, 150)]);
        let times = [140, 160, SECOND_NS, SECOND_NS + 160];
        assert_eq!(times.map(|time| is_joined(&mut joined, time)), [false, false, false, true]);
    }
}
