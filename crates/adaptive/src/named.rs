//! Values that are chosen by name: in files, by flags and through the C interface.

/// A value that is chosen by its name.
pub trait Named: Copy + Eq + Send + Sync + 'static {
    /// All of them: each with its name, and in words what it means.
    const ALL: &'static [(Self, &'static str, &'static str)];
    /// Further names that files may hold.
    const ALIASES: &'static [(Self, &'static str)] = &[];

    /// The value of that name.
    ///
    /// # Errors
    /// The names that are known, as a message puts them.
    fn named(name: &str) -> Result<Self, String> {
        let names = Self::ALL.iter().map(|&(value, name, _)| (value, name));
        let found = names.chain(Self::ALIASES.iter().copied()).find(|&(_, known)| known == name);
        found.map(|(value, _)| value).ok_or_else(Self::names)
    }

    /// Its name.
    fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|&&(value, _, _)| value == self);
        found.expect("every value is in the list").1
    }

    /// The names that are known, as a message puts them.
    fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|&(_, name, _)| format!("`{name}`")).collect();
        let (last, others) = names.split_last().expect("there is a value");
        format!("{} or {last}", others.join(", "))
    }
}
