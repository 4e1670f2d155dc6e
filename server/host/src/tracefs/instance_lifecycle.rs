//! Creating, finding and removing the daemon's tracing instance, and which one is in use now.
//!
//! The daemon's instance has two names. When a probe is deleted while others record, the daemon
//! switches from one to the other, because the kernel resets the ring buffers of an instance in
//! which a removed event was ever enabled (kernel/trace/trace_dynevent.c:dyn_event_release). Never
//! touches an instance that another daemon has claimed.

use std::sync::{Arc, PoisonError, RwLock};

use nix::errno::Errno;

use super::{Claim, ClaimError, Instance, InstanceForm, Tracefs, TracefsError};

/// Settings of an instance.
#[derive(Clone, Debug)]
pub struct InstanceOptions {
    /// Its name: a directory below `instances/`.
    pub name: String,
    /// Size of the ring buffer of each CPU, in KiB.
    pub buffer_kib: u64,
    /// A buffer that is larger, and no larger than this, is left as it is. In KiB.
    pub buffer_max_kib: u64,
    /// Size of a sub-buffer, in KiB: a power of two. 0 keeps the kernel's size, and so does a
    /// kernel without the choice (before 6.8).
    pub sub_buffer_kib: u64,
    /// Trace clock, one of the names in `trace_clock`.
    pub clock: &'static str,
}

impl InstanceOptions {
    fn names(&self) -> [String; 2] {
        Instance::both_names(&self.name)
    }

    /// These settings for an instance whose buffers have grown to `now_kib`, at most to
    /// `buffer_max_kib`.
    #[must_use]
    pub fn grown_to(&self, now_kib: u64) -> Self {
        let has_grown = now_kib >= self.too_large_kib(self.buffer_kib);
        let is_allowed = now_kib < self.too_large_kib(self.buffer_max_kib);
        let grown_kib =
            if has_grown && is_allowed { now_kib.min(self.buffer_max_kib) } else { self.buffer_kib };
        Self { buffer_kib: grown_kib, ..self.clone() }
    }

    /// A buffer of at least this size was not made with the wanted size.
    fn too_large_kib(&self, wanted_kib: u64) -> u64 {
        wanted_kib + ROUNDING_KIB + 2 * self.sub_buffer_wanted_kib()
    }

    /// The sub-buffers that are requested. A small buffer still has some of them: it is read and
    /// overwritten one at a time.
    fn sub_buffer_wanted_kib(&self) -> u64 {
        let most = (self.buffer_kib / SUB_BUFFERS_MIN).max(SMALLEST_SUB_BUFFER_KIB);
        let mut wanted = self.sub_buffer_kib;
        while wanted > most {
            wanted /= 2;
        }
        wanted
    }
}

/// The kernel rounds a buffer up to whole sub-buffers of their data size, and reports the result:
/// at most this much and two sub-buffers more.
const ROUNDING_KIB: u64 = 128;

/// Sub-buffers that a buffer is divided into at least.
const SUB_BUFFERS_MIN: u64 = 8;

/// A page.
const SMALLEST_SUB_BUFFER_KIB: u64 = 4;

impl Instance {
    /// The two names that an instance can have of which this is the first: the daemon changes between them when a probe
    /// is deleted while others record.
    pub fn both_names(first: &str) -> [String; 2] {
        [first.to_owned(), format!("{first}-next")]
    }

    /// Makes the instance, or takes the one that an earlier run left, and brings it into the wanted
    /// form. One that another daemon uses is not touched.
    ///
    /// # Errors
    /// [`ClaimError::Held`] when another daemon has one of the two; [`TracefsError`] for any step
    /// that the kernel refuses.
    pub fn open_or_create(tracefs: &Tracefs, options: &InstanceOptions) -> Result<(Self, Claim), ClaimError> {
        let mut found = Self::claim_what_is_left(tracefs, options)?;
        let is_new = found.is_empty();
        let (instance, claim) = match found.pop() {
            None => Self::make_first(tracefs, options)?,
            Some(second) => match found.pop() {
                None => second,
                Some(first) => Self::keep_one(first, second)?,
            },
        };
        // A new one has a size of the kernel's choice, which says nothing.
        let form = if is_new { options.clone() } else { options.grown_to(instance.buffer_kib()?) };
        instance.bring_into_form(&form)?;
        instance.set_recording(true)?;
        Ok((instance, claim))
    }

    /// Claims those of the two that an earlier run has left.
    fn claim_what_is_left(
        tracefs: &Tracefs,
        options: &InstanceOptions,
    ) -> Result<Vec<(Self, Claim)>, ClaimError> {
        loop {
            let mut claimed = Vec::new();
            for name in options.names() {
                let instance = Self::named(tracefs, &name);
                if let Some(claim) = Claim::on(&instance.root)? {
                    claimed.push((instance, claim));
                }
            }
            // Another daemon can have changed from one to the other meanwhile. Once we have one of
            // them, it no longer can: then the other instance is looked at again.
            let is_complete = options.names().iter().all(|name| {
                let root = tracefs.root().join("instances").join(name);
                !tracefs.files.exists(&root)
                    || claimed.iter().any(|(instance, claim)| instance.root == root && claim.is_on(&root))
            });
            if is_complete {
                return Ok(claimed);
            }
        }
    }

    /// Makes the first of the two. A daemon that starts at the same time makes it too: one of both
    /// is refused.
    fn make_first(tracefs: &Tracefs, options: &InstanceOptions) -> Result<(Self, Claim), ClaimError> {
        let instance = match Self::make(tracefs, &options.name) {
            Ok(instance) => instance,
            Err(error) if error.errno() == Errno::EEXIST as i32 => Self::named(tracefs, &options.name),
            Err(error) => return Err(error.into()),
        };
        let claim = Claim::on_new(&instance.root)?;
        let [_, other] = options.names();
        let other = Claim::on(&tracefs.root().join("instances").join(other));
        let (instance, _) = instance.unless_failed(other)?;
        Ok((instance, claim))
    }

    /// Removes it if a step after it was made has failed: it is incomplete.
    fn unless_failed<T>(self, outcome: Result<T, ClaimError>) -> Result<(Self, T), ClaimError> {
        match outcome {
            Ok(value) => Ok((self, value)),
            Err(error) => {
                if let Err(error) = self.remove() {
                    tracing::warn!(%error, "cannot remove an incomplete trace instance");
                }
                Err(error)
            }
        }
    }

    /// Chooses between two instances that were left by a daemon that was killed during a hand-over.
    /// The new one records only after it is complete, and the old one stops only after that, so
    /// either one that records will do. What was not read of the other is lost.
    fn keep_one(first: (Self, Claim), second: (Self, Claim)) -> Result<(Self, Claim), TracefsError> {
        let (kept, (other, _)) = if first.0.is_recording()? { (first, second) } else { (second, first) };
        tracing::info!(
            removed = other.name(),
            kept = kept.0.name(),
            "removed one of two trace instances of an earlier run"
        );
        if let Err(error) = other.remove() {
            tracing::warn!(%error, "cannot remove a trace instance of an earlier run");
        }
        Ok(kept)
    }

    /// The name of the other instance of the two.
    pub fn next_name(&self, options: &InstanceOptions) -> String {
        let [first, second] = options.names();
        if self.name() == first { second } else { first }
    }

    /// Makes the other instance of the two, empty and not recording.
    ///
    /// # Errors
    /// [`ClaimError`] for any step that the kernel refuses: ENOMEM if there is no memory for its
    /// buffers. After an error the instance does not exist.
    pub fn create_next(
        &self,
        tracefs: &Tracefs,
        options: &InstanceOptions,
    ) -> Result<(Self, Claim), ClaimError> {
        let name = self.next_name(options);
        if let Some(leftover) = Self::find(tracefs, &name) {
            // A daemon that starts may hold it briefly.
            let _claim = Claim::on_new(&leftover.root)?;
            leftover.remove()?;
        }
        let next = Self::make(tracefs, &name)?;
        let prepared = Claim::on_new(&next.root).and_then(|claim| {
            next.set_recording(false)?;
            next.bring_into_form(options)?;
            Ok(claim)
        });
        next.unless_failed(prepared)
    }

    pub(super) fn make(tracefs: &Tracefs, name: &str) -> Result<Self, TracefsError> {
        let instance = Self::named(tracefs, name);
        tracefs.files.make_instance(&instance.root)?;
        Ok(instance)
    }

    /// Sets clock and sizes, and has all CPUs and tasks recorded. Writing clock or size empties the buffer, even when
    /// nothing changes: look first.
    fn bring_into_form(&self, options: &InstanceOptions) -> Result<(), TracefsError> {
        if self.clock()? != options.clock {
            self.files.write(&self.root.join("trace_clock"), options.clock)?;
        }
        let sub_buffer_kib = options.sub_buffer_wanted_kib();
        let sub_buffer = self.root.join("buffer_subbuf_size_kb");
        if sub_buffer_kib > 0
            && self.files.exists(&sub_buffer)
            && self.files.read_trimmed(&sub_buffer)? != sub_buffer_kib.to_string()
        {
            self.files.write(&sub_buffer, &sub_buffer_kib.to_string())?;
        }
        if !(options.buffer_kib..options.too_large_kib(options.buffer_kib)).contains(&self.buffer_kib()?) {
            self.files.write(&self.root.join("buffer_size_kb"), &options.buffer_kib.to_string())?;
        }
        self.reset_selection()?;
        // Any event wakes the reader, which then sets the pace itself: see
        // `kprobed_trace::pipeline`.
        self.files.write_as_owner(&self.root.join("buffer_percent"), "0")
    }

    /// The instance of that name, unchanged, if it exists.
    pub fn find(tracefs: &Tracefs, name: &str) -> Option<Self> {
        let instance = Self::named(tracefs, name);
        tracefs.files.is_directory(&instance.root).then_some(instance)
    }

    /// Removes the instance and with it everything in its buffers.
    ///
    /// # Errors
    /// [`TracefsError`]; EBUSY while one of its files is open.
    pub fn remove(self) -> Result<(), TracefsError> {
        self.files.remove_instance(&self.root)
    }
}

/// The daemon's current instance: the control thread replaces it, all other threads read it.
#[derive(Debug)]
pub struct CurrentInstance(RwLock<FormedInstance>);

/// An instance, and the form that it was given.
type FormedInstance = (Instance, Arc<InstanceForm>);

fn formed(instance: Instance) -> FormedInstance {
    let form = Arc::new(instance.form());
    (instance, form)
}

impl CurrentInstance {
    /// Begins with this instance.
    pub fn new(instance: Instance) -> Self {
        Self(RwLock::new(formed(instance)))
    }

    fn formed(&self) -> FormedInstance {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current instance. It can be replaced, and removed, at any time.
    pub fn get(&self) -> Instance {
        self.formed().0
    }

    /// The form that the current instance was given when it was made.
    pub fn form(&self) -> Arc<InstanceForm> {
        self.formed().1
    }

    /// Calls `look` with the current instance; again with the next one, if that failed and the
    /// instance was replaced meanwhile.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn look<T>(&self, look: impl Fn(&Instance) -> Result<T, TracefsError>) -> Result<T, TracefsError> {
        let instance = self.get();
        match look(&instance) {
            Err(_) if self.get().root() != instance.root() => look(&self.get()),
            outcome => outcome,
        }
    }

    /// Makes another instance the current one.
    pub fn set(&self, instance: Instance) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = formed(instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_have_grown_stay() {
        let options = InstanceOptions {
            name: "x".to_owned(),
            buffer_kib: 64,
            buffer_max_kib: 512,
            sub_buffer_kib: 64,
            clock: "boot",
        };
        let grown = |now_kib| options.grown_to(now_kib).buffer_kib;
        // What is smaller, or too large, is made as it is configured.
        assert_eq!([grown(7), grown(68), grown(256), grown(520), grown(4096)], [64, 64, 256, 512, 64]);
        let fixed = InstanceOptions { buffer_max_kib: 0, ..options };
        assert_eq!(fixed.grown_to(68).buffer_kib, 64);
    }

    #[test]
    fn small_buffers_have_small_sub_buffers() {
        let wanted = |buffer_kib, sub_buffer_kib| {
            let name = "x".to_owned();
            InstanceOptions { name, buffer_kib, buffer_max_kib: 0, sub_buffer_kib, clock: "boot" }
                .sub_buffer_wanted_kib()
        };
        assert_eq!(wanted(8192, 64), 64);
        assert_eq!(wanted(256, 64), 32);
        assert_eq!(wanted(16, 64), 4);
        assert_eq!(wanted(8192, 0), 0);
    }
}
