//! Rules on the syntax tree of one Rust file. Bodies inside `macro_rules!` are not seen here.

use super::finding::Finding;
use super::layout::forbidden_name;
use super::table::{FORBID_UNSAFE_ROOTS, FUNCTION_LINES_MAX, PROSE_VARIANTS};
use super::tree::File;
use proc_macro2::{Ident, Span};
use syn::visit::{self, Visit};
use syn::{Attribute, Fields, Meta, Signature, Type, UseTree};

pub fn check(file: &File, findings: &mut Vec<Finding>) {
    let parsed = match syn::parse_file(&file.text) {
        Ok(parsed) => parsed,
        Err(error) => {
            let line = error.span().start().line;
            findings.push(Finding::error(&file.path, line, "parse", error.to_string()));
            return;
        }
    };
    if FORBID_UNSAFE_ROOTS.contains(&file.path.as_str()) && !forbids_unsafe(&parsed.attrs) {
        let message = "needs `#![forbid(unsafe_code)]`".to_owned();
        findings.push(Finding::error(&file.path, 1, "forbid-unsafe", message));
    }
    Rules { file, findings }.visit_file(&parsed);
}

fn forbids_unsafe(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("forbid")
            && attribute.parse_args::<Ident>().is_ok_and(|name| name == "unsafe_code")
    })
}

struct Rules<'a> {
    file: &'a File,
    findings: &'a mut Vec<Finding>,
}

impl Rules<'_> {
    fn report(&mut self, span: Span, rule: &'static str, message: String) {
        self.findings.push(Finding::error(&self.file.path, span.start().line, rule, message));
    }

    fn function_length(&mut self, signature: &Signature, end: Span) {
        let start = signature.fn_token.span;
        let lines = end.end().line + 1 - start.start().line;
        if lines > FUNCTION_LINES_MAX {
            let name = &signature.ident;
            let message = format!("`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}");
            self.report(start, "function-length", message);
        }
    }
}

impl<'ast> Visit<'ast> for Rules<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function_length(&item.sig, item.block.brace_token.span.close());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function_length(&item.sig, item.block.brace_token.span.close());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function_length(&item.sig, block.brace_token.span.close());
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if forbidden_name(&item.ident.to_string()) {
            let message = format!("module `{}`: name it after what it does", item.ident);
            self.report(item.ident.span(), "vague-name", message);
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        let names = if is_error(item) { PROSE_VARIANTS } else { &PROSE_VARIANTS[..1] };
        for variant in &item.variants {
            if names.iter().any(|name| variant.ident == name) && is_only_text(&variant.fields) {
                let message = format!("`{}(text)`: carry the facts in fields", variant.ident);
                self.report(variant.ident.span(), "prose-error", message);
            }
        }
        visit::visit_item_enum(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("ignore") && !matches!(attribute.meta, Meta::NameValue(_)) {
            let message = "say why: `#[ignore = \"reason\"]`".to_owned();
            self.report(attribute.pound_token.span, "ignore-reason", message);
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if self.file.path.contains("/tiers") && groups_model(&item.tree) {
            let message = "`tiers` moves opaque bytes and never imports `model`".to_owned();
            self.report(item.use_token.span, "tiers-know-model", message);
        }
        visit::visit_item_use(self, item);
    }
}

/// Named `...Error`, or deriving `Error`.
fn is_error(item: &syn::ItemEnum) -> bool {
    item.ident.to_string().ends_with("Error")
        || item.attrs.iter().any(|attribute| match &attribute.meta {
            Meta::List(list) => {
                list.path.is_ident("derive") && list.tokens.to_string().contains("Error")
            }
            Meta::Path(_) | Meta::NameValue(_) => false,
        })
}

/// One unnamed field that is a string of some kind.
fn is_only_text(fields: &Fields) -> bool {
    let Fields::Unnamed(fields) = fields else {
        return false;
    };
    fields.unnamed.len() == 1 && fields.unnamed.iter().all(|field| is_text(&field.ty))
}

fn is_text(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| {
            ["String", "Cow", "str"].iter().any(|name| segment.ident == name)
        }),
        Type::Reference(reference) => is_text(&reference.elem),
        _ => false,
    }
}

/// `use crate::{model, ...}` and its like; the plain `crate::model` is a rule on tokens.
fn groups_model(tree: &UseTree) -> bool {
    match tree {
        UseTree::Path(path) if path.ident == "crate" || path.ident == "super" => {
            match &*path.tree {
                UseTree::Group(group) => group.items.iter().any(starts_with_model),
                below => groups_model(below),
            }
        }
        UseTree::Group(group) => group.items.iter().any(groups_model),
        _ => false,
    }
}

fn starts_with_model(tree: &UseTree) -> bool {
    match tree {
        UseTree::Path(path) => path.ident == "model",
        UseTree::Name(name) => name.ident == "model",
        UseTree::Rename(rename) => rename.ident == "model",
        UseTree::Glob(_) | UseTree::Group(_) => false,
    }
}
