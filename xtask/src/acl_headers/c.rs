//! A C program that holds declarations to the vendor's headers: types when it is compiled, values
//! when it runs.

use super::declarations::{Declarations, Field, Item};

/// The headers that declare everything. The oldest use one word of C++.
pub(super) const INCLUDES: &str = "\
#define constexpr static const
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include \"acl/acl.h\"
#include \"acl/acl_rt.h\"
#include \"acl/error_codes/rt_error_codes.h\"
";

/// The program for these declarations. It prints the values that differ.
pub(super) fn program(declarations: &Declarations) -> String {
    let mut types = String::from(INCLUDES);
    types += "#define SAME(...) _Static_assert(__builtin_types_compatible_p(__VA_ARGS__), \
              #__VA_ARGS__)\n";
    let mut values = String::from("int main(void) {\n");
    for item in &declarations.0 {
        match item {
            Item::Value { name, value } => {
                let is = format!("(long long){name}");
                let text = format!("\"{name} is %lld, not {value}\\n\"");
                values += &format!("    if ({is} != {value}) printf({text}, {is});\n");
            }
            item => types += &check(item),
        }
    }
    format!("{types}{values}    return 0;\n}}\n")
}

/// The assertions about one type or function.
fn check(item: &Item) -> String {
    match item {
        Item::Function { name, arguments, result, .. } => {
            let arguments: Vec<String> =
                arguments.iter().map(|argument| c_type(&argument.rust_type)).collect();
            let arguments = match arguments.is_empty() {
                true => "void".to_owned(),
                false => arguments.join(", "),
            };
            format!("SAME(__typeof__({name}), {} ({arguments}));\n", c_type(result))
        }
        Item::Alias { name, rust_type } => match function_pointer(rust_type) {
            Some(pointer) => format!("SAME({name}, {pointer});\n"),
            // The vendor's are enumerations: only their size is ours.
            None => format!("_Static_assert(sizeof({name}) == sizeof(int), \"{name}\");\n"),
        },
        Item::Handle { name } => format!("SAME({name}, void *);\n"),
        Item::Layout { name, is_union, fields } => layout(name, *is_union, fields),
        Item::Value { .. } => String::new(),
    }
}

/// Declares the structure once more as we have it, and compares the two field by field.
fn layout(name: &str, is_union: bool, fields: &[Field]) -> String {
    let keyword = if is_union { "union" } else { "struct" };
    let ours = format!("{keyword} our_{name}");
    let mut text = format!("{ours} {{");
    for field in fields {
        text += &match field.rust_type.strip_prefix('[').and_then(|rest| rest.split_once("; ")) {
            Some((element, count)) => {
                format!(" {} {}[{}];", c_type(element), field.name, count.trim_end_matches(']'))
            }
            None => format!(" {} {};", c_type(&field.rust_type), field.name),
        };
    }
    text += " };\n";
    text += &format!("_Static_assert(sizeof({ours}) == sizeof({name}), \"size of {name}\");\n");
    text += &format!("_Static_assert(_Alignof({ours}) == _Alignof({name}), \"{name}\");\n");
    for Field { name: field, .. } in fields {
        text += &format!(
            "_Static_assert(offsetof({ours}, {field}) == offsetof({name}, {field}), \
             \"{name}.{field}\");\n\
             SAME(__typeof__((({ours} *)0)->{field}), __typeof__((({name} *)0)->{field}));\n"
        );
    }
    text
}

/// A type as C writes it. The vendor's own names stay.
fn c_type(rust_type: &str) -> String {
    if let Some(inner) = rust_type.strip_prefix("*mut ") {
        return format!("{} *", c_type(inner));
    }
    if let Some(inner) = rust_type.strip_prefix("*const ") {
        return format!("const {} *", c_type(inner));
    }
    let name = match rust_type {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "u8" => "uint8_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "usize" => "size_t",
        "f32" => "float",
        vendors => vendors,
    };
    name.to_owned()
}

/// A pointer to a function that gives nothing.
fn function_pointer(rust_type: &str) -> Option<String> {
    let inner = rust_type.strip_prefix("Option<unsafe extern \"C\" fn(")?.strip_suffix(")>")?;
    let arguments: Vec<String> = inner.split(", ").map(c_type).collect();
    Some(format!("void (*)({})", arguments.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_written_as_c_writes_them() {
        let check = |rust: &str, c: &str| assert_eq!(c_type(rust), c);
        check("*mut *mut c_void", "void * *");
        check("*const c_char", "const char *");
        check("*mut usize", "size_t *");
        check("aclrtStream", "aclrtStream");
        let pointer = function_pointer("Option<unsafe extern \"C\" fn(*mut c_void)>");
        assert_eq!(pointer.as_deref(), Some("void (*)(void *)"));
        assert_eq!(function_pointer("c_int"), None);
    }

    #[test]
    fn each_item_has_its_assertion() {
        let field = |name: &str, rust_type: &str| Field {
            name: name.to_owned(),
            rust_type: rust_type.to_owned(),
        };
        let text = program(&Declarations(vec![
            Item::Function {
                name: "aclrtFree".to_owned(),
                is_required: true,
                arguments: vec![field("devPtr", "*mut c_void")],
                result: "aclError".to_owned(),
            },
            Item::Layout {
                name: "aclrtUuid".to_owned(),
                is_union: false,
                fields: vec![field("bytes", "[c_char; 16]")],
            },
            Item::Value { name: "ACL_SUCCESS".to_owned(), value: 0 },
        ]));
        assert!(text.contains("SAME(__typeof__(aclrtFree), aclError (void *));"), "{text}");
        assert!(text.contains("struct our_aclrtUuid { char bytes[16]; };"), "{text}");
        assert!(text.contains("if ((long long)ACL_SUCCESS != 0)"), "{text}");
    }
}
