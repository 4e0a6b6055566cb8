//! Objects of the program that graphs hold: its function is called when nothing holds one any more.

use std::ffi::c_void;

use crate::failure::Failure;
use crate::sim::{Kind, Sim, enter, inside_host_function};
use crate::stream::HostFunction;

/// An object, and how many references there are to it.
#[derive(Debug)]
pub(crate) struct UserObject {
    references: usize,
    end: HostFunction,
    pub(crate) call: &'static str,
}

impl Sim {
    /// Creates an object with so many references, which are the program's.
    pub fn create_user_object(
        &mut self,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        references: usize,
    ) -> Result<u64, Failure> {
        self.check_initialised()?;
        if references == 0 {
            return Err(Failure::InvalidValue);
        }
        let (number, call) = (self.new_handle(Kind::UserObject), self.call);
        self.user_objects
            .insert(number, UserObject { references, end: HostFunction { function, data }, call });
        Ok(number)
    }

    /// Gives references of the program's up.
    pub fn release_user_object(&mut self, object: u64, references: usize) -> Result<(), Failure> {
        self.check_initialised()?;
        if !self.user_objects.contains_key(&object) {
            return Err(self.missing(Kind::UserObject, object));
        }
        (0..references).for_each(|_| self.let_go(object));
        Ok(())
    }

    /// Gives a graph references to an object: new ones, or those of the program. The graph may be one that is being captured.
    pub fn retain_user_object(
        &mut self,
        graph: u64,
        object: u64,
        references: usize,
        moved: bool,
    ) -> Result<(), Failure> {
        self.check_initialised()?;
        let Some(known) = self.user_objects.get_mut(&object) else {
            return Err(self.missing(Kind::UserObject, object));
        };
        known.references += if moved { 0 } else { references };
        let mut captures = self.streams.values_mut().filter_map(|stream| stream.capture.as_mut());
        let held = match captures.find(|capture| capture.number == graph) {
            Some(capture) => &mut capture.held,
            None => &mut self.graph(graph)?.held,
        };
        held.extend(std::iter::repeat_n(object, references));
        Ok(())
    }

    /// One more reference to each.
    pub(crate) fn hold_more(&mut self, objects: &[u64]) {
        for object in objects {
            if let Some(known) = self.user_objects.get_mut(object) {
                known.references += 1;
            }
        }
    }

    /// One reference less. The function of the last one runs on a thread of the driver.
    pub(crate) fn let_go(&mut self, object: u64) {
        let Some(known) = self.user_objects.get_mut(&object) else {
            return self.violation("a reference to an object is given up twice".to_owned());
        };
        known.references -= 1;
        if known.references > 0 {
            return;
        }
        let end = known.end;
        let run = move || {
            let end = end;
            // SAFETY: whoever has created the object has promised that it may be called, once.
            inside_host_function(|| unsafe { (end.function)(end.data) });
            enter().user_objects.remove(&object);
        };
        if std::thread::Builder::new().name("driver-sim-object".to_owned()).spawn(run).is_err() {
            self.violation("no thread could be started for the end of an object".to_owned());
        }
    }
}
