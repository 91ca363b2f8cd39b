//! Tables for the terminal whose columns line up.

/// Where cells stand in their columns, but for those of the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows as lines, each ending with a line break.
pub(crate) fn lines<const N: usize>(rows: &[[String; N]], align: Align) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match align {
            Align::Right if column > 0 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "1"], ["größe", "23"]].map(|row| row.map(str::to_owned));
        assert_eq!(lines(&rows, Align::Right), "a       1\ngröße  23\n");
        assert_eq!(lines(&rows, Align::Left), "a      1\ngröße  23\n");
        assert_eq!(lines::<2>(&[], Align::Left), "");
    }
}
