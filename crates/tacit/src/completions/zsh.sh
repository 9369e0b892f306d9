# Names and ids that a running agent knows.
_tacit() {
    local what= one found=
    local -a control
    integer at
    case $words[CURRENT-1] in
    --control) ;;
    # The value is no file, also if no agent answers.
    --rule) what=rules found=1 ;;
    --run) what=runs found=1 ;;
    connections) [[ $words[2] != show ]] || what=connections ;;
    policy) [[ $words[2] != show ]] || what=rules ;;
    *)
        case $words[2] in
        close) what=connections ;;
        trace) what="rules connections" ;;
        esac
        ;;
    esac
    (( CURRENT > 2 )) || what=
    for (( at = 2; at < CURRENT; at++ )); do
        case $words[at] in
        --control) control=(--control ${${(Q)words[at+1]}/#\~/$HOME}) ;;
        --control=*) control=(--control ${${(Q)words[at]#--control=}/#\~/$HOME}) ;;
        esac
    done
    for one in ${=what}; do
        compadd -- ${(f)"$(tacit names $one $control 2>/dev/null)"} && found=1
    done
    # Where there is a name, a file is not meant.
    [[ -n $found ]] || _tacit_static "$@"
}
