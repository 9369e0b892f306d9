# Names and ids that a running agent knows.
_tacit_with_names() {
    _tacit "$@"
    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local verb=${COMP_WORDS[1]:-} what= control=() at one
    # bash divides --rule=NAME into three words.
    [ "$before" != = ] || before=${COMP_WORDS[COMP_CWORD - 2]}
    [ "$cur" != = ] || cur=
    case $before in
    --control) ;;
    --rule) what=rules ;;
    --run) what=runs ;;
    connections) [ "$verb" != show ] || what=connections ;;
    policy) [ "$verb" != show ] || what=rules ;;
    *)
        case $verb in
        close) what=connections ;;
        trace) what="rules connections" ;;
        esac
        ;;
    esac
    case $cur in -*) return ;; esac
    for ((at = 1; at < COMP_CWORD; at++)); do
        [ "${COMP_WORDS[at]}" = --control ] || continue
        [ "${COMP_WORDS[at + 1]}" != = ] || ((at++))
        control=(--control "${COMP_WORDS[at + 1]/#\~/$HOME}")
    done
    case $before in
    --rule | --run)
        # The value is no file, also if no agent answers.
        COMPREPLY=()
        compopt +o bashdefault +o default 2>/dev/null
        ;;
    esac
    for one in $what; do
        COMPREPLY+=($(compgen -W "$(tacit names "$one" "${control[@]}" 2>/dev/null)" -- "$cur"))
    done
}
complete -F _tacit_with_names -o bashdefault -o default tacit
