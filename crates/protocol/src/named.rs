//! Enums whose variants have names, as connection strings, messages and programs spell them.

/// Declares an enum with the name of each variant beside it: the enum itself, `ALL` of its variants, `name`,
/// `from_name`, and the name as its text.
///
/// ```
/// quorate_protocol::named! {
///     /// How large.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Size {
///         /// Below ten.
///         Small = "small",
///         /// Everything else.
///         Large = "large",
///     }
/// }
/// assert_eq!(Size::ALL.map(Size::name), ["small", "large"]);
/// assert_eq!((Size::from_name("large"), Size::from_name("huge")), (Some(Size::Large), None));
/// ```
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $vis:vis enum $named:ident {
            $($(#[$about_variant:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$about])*
        $vis enum $named {
            $($(#[$about_variant])* $variant,)+
        }

        impl $named {
            /// All of them, in the order of their declaration.
            #[allow(dead_code, reason = "some names are only written")]
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The one of this name.
            #[allow(dead_code, reason = "some names are only written")]
            $vis fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|known| known.name() == name)
            }
        }

        impl ::std::fmt::Display for $named {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
